"""What a fit would charge, before it reads a row."""

import dataclasses

import numpy as np
import pytest

from tests.tabular import small_table
from tfdpflows.accounting.rounding import round_up
from tfdpflows.tabular import TableSchema, TabularSynthesizer, fit_plan


@pytest.fixture(scope='module')
def people():
  return small_table.make(num_rows=1500)


def _draft(schema):
  content = schema.to_dict()
  for field in content['fields']:
    if field['type'] in ('integer', 'number'):
      field['fromData'] = ['minimum', 'maximum']
  return TableSchema.from_dict(content)


def test_a_fit_charges_what_was_planned(people):
  table = people.table.assign(person=np.arange(1500) // 2)
  synthesizer = TabularSynthesizer(
    _draft(people.schema),
    **people.budget,
    bounds_epsilon=2.0,
    out_of_range='clip',
    privacy_unit='person',
    max_rows_per_unit=3,
    max_rows_epsilon=0.5,
    adaptive_marginals=2,
    **people.tiny,
  )
  plan = synthesizer.plan(750)
  assert [name for name, _ in plan.charges] == [
    'types, ranges and categories',
    'number of rows per unit',
    'histograms of all columns',
    'adaptive marginals',
    'training',
  ]
  # Nothing was read, and nothing is of the plan alone.
  assert synthesizer.ledger is None and synthesizer.num_examples is None
  assert plan.seconds is None and plan.count_std is None
  with small_table.short():
    synthesizer.fit(table, progress=False)
  # Bins follow the number of rows, which is released.
  bins = synthesizer.model.num_bins
  assert dataclasses.replace(plan.model, num_bins=bins) == synthesizer.model
  assert 'unless it is given, num_bins follows' in ' '.join(str(plan).split())
  assert plan.epsilon() == pytest.approx(synthesizer.ledger.epsilon(), rel=1e-6)
  assert plan.epsilon() <= people.budget['epsilon']


def test_noise_of_a_count_is_told_of_units(people):
  plans = {
    (weighting, most): TabularSynthesizer(
      people.schema,
      **people.budget,
      privacy_unit='person',
      max_rows_per_unit=most,
      unit_weighting=weighting,
    ).plan(5000)
    for weighting, most in (('rows', 1), ('rows', 6), ('units', 6))
  }
  alone = plans['rows', 1].count_std
  assert plans['rows', 6].count_std == pytest.approx(6 * alone)
  assert plans['units', 6].count_std == pytest.approx(alone)
  # As of 5,000 people with the root of 6 rows each, and the noise of 6.
  bins = {key: plan.model.num_bins for key, plan in plans.items()}
  assert bins['rows', 6] < bins['rows', 1] == bins['units', 6]
  text = ' '.join(str(plans['rows', 6]).split())
  assert (
    f'has noise of about {6 * alone:.2g} rows, in proportion to '
    'max_rows_per_unit, 6.'
  ) in text
  text = ' '.join(str(plans['units', 6]).split())
  assert (
    'where all rows of one person weigh 1 together, has noise of about '
    f'{alone:.2g}.'
  ) in text


@pytest.mark.parametrize(
  'model', ['histogram', 'spline', 'hflow', 'dpgan', 'pategan']
)
def test_its_text_has_each_charge_and_setting(model, people):
  synthesizer = TabularSynthesizer(people.schema, **people.budget, model=model)
  plan = synthesizer.plan(5000)
  text = str(plan)
  assert text.startswith('A fit of 5,000 rows within epsilon 8 at delta 0.0001')
  for name, _ in plan.charges:
    assert f'  {name}, epsilon {round_up(plan.epsilon(name))} alone: ' in text
    assert 0 < plan.epsilon(name) < plan.epsilon() <= 8
  assert f'  all of it together, epsilon {round_up(plan.epsilon())}\n' in text
  assert f'hyper-parameters of model {model}\n' in text
  assert f'marginal_share={plan.model.marginal_share:g}, ' in text
  assert f'has noise of about {plan.count_std:.2g} rows.' in text
  assert max(map(len, text.splitlines())) <= 88
  assert ('It takes about' in text) == (model == 'histogram')


def test_an_asymptotic_accountant_is_marked(people):
  budget = {**people.budget, 'accountant': 'gdp'}
  synthesizer = TabularSynthesizer(
    people.schema, **budget, adaptive_marginals=0
  )
  text = str(synthesizer.plan(5000))
  assert '(gdp, asymptotic: no upper bound)' in ' '.join(text.split())


def test_noise_that_is_large_beside_the_table_is_told(caplog):
  small = small_table.make()
  budget = {**small.budget, 'epsilon': 0.01}
  synthesizer = TabularSynthesizer(small.schema, **budget)
  assert 'will be little but noise' in str(synthesizer.plan(400))
  usual = TabularSynthesizer(small.schema, **small.budget)
  assert 'is large beside' not in str(usual.plan(400))
  between = fit_plan.say_if_noise(0.06 * 400, 400)
  assert 'much of what connects the columns will be noise' in between
  with (
    small_table.short(),
    small_table.untrained(),
    caplog.at_level('WARNING'),
  ):
    synthesizer.fit(small.table, progress=False)
  assert 'is large beside the 400 of the table' in caplog.text


def test_what_no_fit_would_do_is_refused(people):
  synthesizer = TabularSynthesizer(people.schema, **people.budget)
  with pytest.raises(ValueError, match='num_examples'):
    synthesizer.plan(0)
  with pytest.raises(TypeError, match='num_examples is of type DataFrame'):
    synthesizer.plan(people.table)
  with pytest.raises(ValueError, match='delta is 0.0001, and one over'):
    synthesizer.plan(10_000)
  with pytest.raises(ValueError, match="No charge is named 'noise'"):
    synthesizer.plan(500).epsilon('noise')
  draft = TabularSynthesizer(_draft(people.schema), **people.budget)
  with pytest.raises(ValueError, match='The schema is a draft'):
    draft.plan(500)
