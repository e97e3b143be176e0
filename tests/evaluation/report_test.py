import html.parser
import re

import numpy as np
import pandas as pd
import pytest

from tfdpflows import progress
from tfdpflows.evaluation import figures, report
from tfdpflows.tabular.field import Field
from tfdpflows.tabular.schema import TableSchema

EVIL = '<script>alert("x")</script>'
VOID = {'meta'}


class Checker(html.parser.HTMLParser):
  """Notes tags, attributes and text, and that every element is closed."""

  def __init__(self):
    super().__init__()
    self.open, self.tags, self.attributes, self.text = [], [], [], []

  def handle_starttag(self, tag, attrs):
    self.tags.append(tag)
    self.attributes += attrs
    if tag not in VOID:
      self.open.append(tag)

  def handle_startendtag(self, tag, attrs):
    self.tags.append(tag)
    self.attributes += attrs

  def handle_endtag(self, tag):
    if self.open.pop() != tag:
      raise AssertionError(f'</{tag}> closes nothing')

  def handle_data(self, data):
    self.text.append(data)


def schema():
  return TableSchema(
    [
      Field('age', 'integer', 0, 99, required=True),
      Field('gain', 'number', 0.0, 1e5),
      Field(EVIL, 'string', enum=(EVIL, 'b', *map(str, range(20)))),
      Field('member', 'boolean', required=True),
    ]
  )


def table(n=400, seed=0):
  rng = np.random.default_rng(seed)
  frame = pd.DataFrame(
    {
      'age': rng.integers(0, 100, n),
      'gain': np.where(rng.random(n) < 0.9, 0, rng.uniform(1, 1e5, n)),
      EVIL: rng.choice([EVIL, 'b', '1', '2'], n),
      'member': rng.random(n) < 0.5,
    }
  )
  frame.loc[rng.random(n) < 0.1, 'gain'] = np.nan
  return frame


def read(path):
  text = path.read_text(encoding='utf-8')
  checker = Checker()
  checker.feed(text)
  checker.close()
  assert not checker.open
  return text, checker


@pytest.fixture(scope='module')
def page(tmp_path_factory):
  path = tmp_path_factory.mktemp('report') / 'report.html'
  report.write_report(
    path,
    real=table(),
    synthetic=table(seed=1),
    schema=schema(),
    statement={'epsilon': 0.99991, 'delta': 1e-5, 'note': EVIL},
    target='member',
    title=f'People {EVIL}',
  )
  return read(path)


class TestReport:
  def test_it_loads_nothing_and_runs_nothing(self, page):
    text, checker = page
    assert not {'script', 'link', 'img', 'iframe', 'object'} & {*checker.tags}
    assert 'http:' not in text
    assert 'https:' not in text
    assert '@import' not in text
    assert 'url(' not in text
    assert not [key for key, _ in checker.attributes if key.startswith('on')]

  def test_everything_is_escaped(self, page):
    text, checker = page
    assert '<script' not in text
    assert EVIL in ''.join(checker.text)

  def test_it_says_which_tables_are_samples(self, page, tmp_path):
    text, _ = page
    assert 'drawn uniformly' not in text
    path = tmp_path / 'report.html'
    tables = {'real': table(), 'synthetic': table(seed=1)}
    report.write_report(
      path, **tables, schema=schema(), num_real=12_345, num_synthetic=400
    )
    text, _ = read(path)
    said = 'The real table has 12,345 rows: 400 of them, drawn uniformly, stand'
    assert said in text
    assert text.count('drawn uniformly') == 1

  def test_it_warns_of_itself(self, page):
    text, _ = page
    assert 'This report is not private.' in text
    assert 'do not publish' in ' '.join(text.split())

  def test_it_says_the_claim_and_never_less(self, page):
    text, _ = page
    assert 'ε ≤ 1<' in text
    assert 'δ = 1e-05' in text

  def test_figures_have_names_and_tables_have_headers(self, page):
    text, checker = page
    figures = re.findall(r'<svg [^>]*>', text)
    assert len(figures) >= 4 + 3 + 4
    for figure in figures:
      assert 'role="img"' in figure
      assert 'aria-label="' in figure
    assert checker.tags.count('table') == 5
    assert checker.tags.count('caption') == 5
    assert ('scope', 'col') in checker.attributes
    assert ('scope', 'row') in checker.attributes

  def test_it_is_for_light_dark_narrow_and_paper(self, page):
    text, _ = page
    assert 'prefers-color-scheme: dark' in text
    assert '@media print' in text
    assert 'name="viewport"' in text

  def test_no_number_is_undefined(self, page):
    _, checker = page
    words = set(re.findall(r'\w+', ' '.join(checker.text)))
    assert 'nan' not in words
    for key, value in checker.attributes:
      assert 'nan' not in str(value).split(), key

  def test_numbers_stand_side_by_side(self, page):
    text = ' '.join(page[1].text)
    ages = [f'{frame["age"].mean():.4g}' for frame in (table(), table(seed=1))]
    assert f'age {ages[0]} {ages[1]} ' in text
    gains = table()['gain'].dropna()  # More than half are 0.
    assert f'{gains.std(ddof=0):,.0f}' in text
    assert '400 synthetic rows and, for comparison, on one half' in text
    assert '(about 200), without' in text

  def test_every_scored_classifier_has_a_row(self, page):
    text, _ = page
    for name in ('logistic regression', 'random forest', 'mean'):
      assert f'<th scope="row">{name}</th>' in text

  def test_several_fits_are_compared(self, tmp_path, monkeypatch):
    path, logged = tmp_path / 'report.html', []
    monkeypatch.setattr(progress, 'is_logged', lambda: True)
    monkeypatch.setattr(
      progress.logging, 'info', lambda text, *given: logged.append(text % given)
    )
    other = report.SyntheticTable(table(seed=2), {'epsilon': 3, 'delta': 1e-5})
    report.write_report(
      path,
      real=table(),
      synthetic=table(seed=1),
      schema=schema(),
      target='member',
      name='mine',
      others={EVIL: other, 'bare': report.SyntheticTable(table(seed=3))},
    )
    # Three on synthetic and on real rows, of each half; three for each fit.
    counts = [text.split(', ')[0] for text in logged]
    assert counts == ['classifiers 6/6'] * 2 + ['classifiers 3/3'] * 3
    text, checker = read(path)
    part = text[text.index('id="several"') :]
    part = part[: part.index('</section>')]
    assert part.count('<th scope="row">') == 3
    assert '<th scope="row">mine</th><td>–</td>' in part
    assert '≤ 3<' in part
    assert 'at δ = 1e-05<' in part
    assert 5 <= part.count('<b>') <= 18
    assert EVIL in ''.join(checker.text)

  def test_an_asymptotic_epsilon_is_marked_wherever_it_is(self, tmp_path):
    path = tmp_path / 'report.html'
    claim = {'epsilon': 3, 'delta': 1e-5, 'guarantee': 'asymptotic'}
    report.write_report(
      path,
      real=table(),
      synthetic=table(seed=1),
      schema=schema(),
      statement=claim,
      others={'other': report.SyntheticTable(table(seed=2), claim)},
    )
    text, _ = read(path)
    assert '≤ 3' not in text
    part = text[text.index('id="several"') :]
    assert part[: part.index('</section>')].count('asymptotic') == 2

  def test_one_absurd_value_is_no_error(self, tmp_path):
    path, real = tmp_path / 'report.html', table()
    real.loc[0, 'gain'] = 1e300
    report.write_report(
      path,
      real=real,
      synthetic=table(seed=1),
      schema=schema(),
      target='member',
      out_of_range='clip',
    )
    text = ' '.join(read(path)[1].text)
    assert not re.search(r'\b(nan|inf)\b', text)

  def test_copies_of_a_long_table_are_found(self, tmp_path):
    path = tmp_path / 'report.html'
    real = pd.DataFrame({'x': np.arange(10_000)})
    report.write_report(
      path,
      real=real,
      synthetic=real[::-1],
      schema=TableSchema([Field('x', 'integer', 0, 9999, required=True)]),
    )
    text, _ = read(path)
    assert '100% of the synthetic rows are rows of the real table' in text
    assert 'at most 2,000 rows of each table' in text

  def test_fits_say_if_epsilon_is_an_upper_bound(self):
    rows, claim = table(50), {'epsilon': 1.0, 'delta': 1e-5}
    found = report.compare_fits(
      rows,
      {
        'gdp': report.SyntheticTable(
          rows, {**claim, 'guarantee': 'asymptotic'}
        ),
        'pld': report.SyntheticTable(rows, claim),
        'none': report.SyntheticTable(rows),
      },
      schema(),
    )
    assert list(found['guarantee']) == ['asymptotic', 'upper_bound', 'none']

  @pytest.mark.parametrize('is_copied', [False, True])
  def test_copies_are_found_in_samples(self, is_copied, tmp_path):
    path = tmp_path / 'report.html'
    rng = np.random.default_rng(0)
    # Every tenth row stands for a table.
    real, synthetic = (2 * rng.permutation(20_000)[:2000] for _ in range(2))
    if not is_copied:
      synthetic = synthetic + (rng.random(2000) < 0.7)
    report.write_report(
      path,
      real=pd.DataFrame({'x': real}),
      synthetic=pd.DataFrame({'x': synthetic}),
      schema=TableSchema([Field('x', 'integer', 0, 39_999, required=True)]),
      num_real=20_000,
      num_synthetic=20_000,
    )
    text, _ = read(path)
    assert ('of the synthetic rows are rows of the real' in text) == is_copied

  def test_a_constant_column_is_not_called_right(self, tmp_path):
    path = tmp_path / 'report.html'
    report.write_report(
      path,
      real=pd.DataFrame({'x': np.full(1000, 5.0)}),
      synthetic=pd.DataFrame({'x': np.linspace(0, 10, 1000)}),
      schema=TableSchema([Field('x', 'number', 0, 10, required=True)]),
    )
    text, _ = read(path)
    assert '1 of 1 are farther off than chance explains: x.' in text

  def test_pairs_that_lost_their_association_are_listed_first(self, tmp_path):
    rng = np.random.default_rng(0)
    names = [f'c{i}' for i in range(7)]
    real = pd.DataFrame(rng.normal(0, 1, [600, 7]).clip(-9, 9), columns=names)
    real['c1'] = real['c0'] * 0.5 + real['c1'] * 0.8
    synthetic = real.copy()
    synthetic['c1'] = rng.permutation(real['c1'])
    # All other pairs are farther off.
    synthetic[names[2:]] = synthetic[names[2:]] / 3
    fields = [Field(n, 'number', minimum=-10, maximum=10) for n in names]
    path = tmp_path / 'report.html'
    report.write_report(
      path, real=real, synthetic=synthetic, schema=TableSchema(fields)
    )
    html = path.read_text(encoding='utf-8')
    assert '0 of 1 pairs that depend' in html
    assert 'within 0.1 of it; not c0 × c1.' in html
    rows = html[html.index('First the pair that depends') :]
    assert rows.index('c0 × c1') < rows.index('c2 × c')

  def test_a_fit_of_other_columns_is_named(self, tmp_path):
    with pytest.raises(ValueError, match="The synthetic table 'other'"):
      report.write_report(
        tmp_path / 'report.html',
        real=table(),
        synthetic=table(seed=1),
        schema=schema(),
        others={'other': report.SyntheticTable(pd.DataFrame({'x': [1]}))},
      )
    assert not (tmp_path / 'report.html').exists()

  def test_without_statement_and_target(self, tmp_path):
    path = tmp_path / 'report.html'
    report.write_report(
      path, real=table(), synthetic=table(seed=1), schema=schema()
    )
    text, _ = read(path)
    assert 'No privacy statement came with' in text
    assert 'ε' not in text
    assert 'id="scores"' not in text

  def test_tables_that_are_mixed_up_are_told(self, page, tmp_path):
    said = '100% of the synthetic rows are rows of the real table'
    assert said not in page[0]
    path = tmp_path / 'report.html'
    report.write_report(path, real=table(), synthetic=table(), schema=schema())
    assert said in read(path)[0]

  def test_statement_objects_and_texts(self, tmp_path):
    class Statement:
      def to_text(self):
        return 'epsilon <= 2'

      def to_dict(self):
        return {'epsilon': 1.23456, 'delta': 1e-6, 'seeded': True}

    for statement in (Statement(), 'epsilon <= 2'):
      path = tmp_path / 'report.html'
      report.write_report(
        path,
        real=table(50),
        synthetic=table(50, 1),
        schema=schema(),
        statement=statement,
      )
      text, _ = read(path)
      assert 'epsilon &lt;= 2' in text
      stated = not isinstance(statement, str)
      assert ('ε ≤ 1.2346' in text) == stated
      assert ('who knows the seed' in text) == stated

  def test_one_column_and_constant_columns(self, tmp_path):
    one = TableSchema([Field('x', 'number', 0, 1, required=True)])
    frame = pd.DataFrame({'x': [0.5, 0.5, 0.5]})
    path = tmp_path / 'report.html'
    report.write_report(path, real=frame, synthetic=frame, schema=one)
    text, _ = read(path)
    assert '1 column.' in text
    assert 'id="associations"' not in text

  def test_a_column_of_missing_values(self, tmp_path):
    path = tmp_path / 'report.html'
    report.write_report(
      path,
      real=table(),
      synthetic=table(seed=1).assign(gain=np.nan),
      schema=schema(),
    )
    text, _ = read(path)
    assert 'no values in one of the tables' in text
    assert '100.0%' in text

  def test_a_bad_table_writes_nothing(self, tmp_path):
    path = tmp_path / 'report.html'
    path.write_text('before')
    with pytest.raises(ValueError, match="The synthetic table: Column 'age'"):
      report.write_report(
        path,
        real=table(),
        synthetic=table().assign(age=1000),
        schema=schema(),
      )
    assert path.read_text() == 'before'
    assert [p.name for p in tmp_path.iterdir()] == ['report.html']

  def test_real_values_outside_are_counted_and_compared_as_they_are(
    self, tmp_path
  ):
    real = table()
    real.loc[3, 'age'] = 120
    tables = {'real': real, 'synthetic': table(), 'schema': schema()}
    with pytest.raises(ValueError, match="The real table: Column 'age', row 4"):
      report.write_report(tmp_path / 'report.html', **tables)
    path = tmp_path / 'report.html'
    statement = {'epsilon': 1.0, 'delta': 1e-5}
    report.write_report(
      path, out_of_range='clip', statement=statement, **tables
    )
    text = read(path)[0]
    assert '1 (' in text.partition('outside, real')[2]
    assert '1 values of the real table compared here are outside' in text
    tables['real'] = table()
    report.write_report(path, statement=statement, **tables)
    assert 'None in the real table' in read(path)[0]

  def test_rare_classes_are_scored_in_both_halves(self, tmp_path):
    real = table(60)
    real['member'] = np.arange(60) < 2
    path = tmp_path / 'report.html'
    report.write_report(
      path, real=real, synthetic=table(), schema=schema(), target='member'
    )
    assert 'id="scores"' in read(path)[0]


class TestFigures:
  def test_integer_bins_hold_whole_values(self):
    field = Field('x', 'integer', 0, 365)
    for high in (1, 5, 38, 39, 40, 41, 200, 365):
      edges = figures._histogram_edges(np.arange(high + 1.0), field)
      widths = np.diff(edges)
      assert np.allclose(widths, widths[0])
      assert widths[0] == round(widths[0])
      assert len(widths) <= 41

  @pytest.mark.parametrize(
    ('low', 'high'), [(0, 1), (-0.5, 9.5), (0.001, 0.0012), (-3e6, 4e9)]
  )
  def test_ticks_are_few_and_inside(self, low, high):
    ticks = figures._ticks(low, high, False, 250, figures._label)
    assert 2 <= len(ticks) <= 7
    assert min(ticks) >= low - 1e-12
    assert max(ticks) <= high * (1 + 1e-12)

  def test_labels_of_ticks_do_not_collide(self):
    for low, high in [(-3e8, 3e8), (1.00001, 1.00002), (0, 123456789)]:
      ticks = figures._ticks(low, high, False, 250, figures._label)
      at = (ticks - low) / (high - low) * 250
      longest = max(len(figures._label(tick)) for tick in ticks)
      assert len(ticks) == 1 or np.diff(at).min() >= 6 * longest

  def test_many_categories_are_folded(self):
    names = tuple(f'category {i}' for i in range(50))
    field = Field('x', 'string', enum=names, required=True)
    column = pd.Series(np.repeat(names, 3), dtype=object)
    figure = figures.marginal_figure(column, column, field)
    assert '43 others' in figure
    assert figure.count('class="made"') == 8


def test_the_area_below_a_claim_is_drawn():
  """Pages leave out what matplotlib would draw by a name."""
  claimed = np.array([[0.0, 0.1], [0.4, 0.8], [1.0, 1.0]])
  drawn = figures.roc_figure(claimed, np.empty([0, 2]), 'ROC')
  assert '<use' not in drawn
  empty = re.findall(r'<path d="[^"]*" style="fill: ([^;"]*)', drawn)
  assert 'var(--empty)' in empty, empty
