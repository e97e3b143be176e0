"""The checker that a model holds: before it trains, and around each step."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Sequence
from concurrent import futures
from typing import Any, Optional

import numpy as np
import tensorflow as tf
from absl import logging

from tfdpflows import gradients, progress
from tfdpflows._autograph import unconverted
from tfdpflows._keras import keras
from tfdpflows.gradients import fallback
from tfdpflows.gradients.rules import observed
from tfdpflows.independence import (
  axes,
  comparison,
  errors,
  graph_scan,
  keras_layers,
  probe_rows,
  rules,
  runs,
  shape_arithmetic,
)
from tfdpflows.training.replicas import Workers

# How many times as long as the first trace of a model its check takes, and the
# seconds of that trace from which it is worth a line.
_TRACES = 10
_SLOW = 1.0


class Checker:
  """Checks that examples are independent, and that none can stop training.

  Clipping bounds what an example adds to an update only where the loss of an
  example depends on no other example, and where no variable keeps something of
  the rows. And no epsilon covers that a row ends training. Before the first row
  is read, each model is checked once for each kind of rows:

  1. Layers that are known to break it are refused by name.
  2. The step is traced, and refused for operations that may fail for some
     values, write them down or keep them, see `graph_scan`.
  3. It is run on probe rows, at several weights, and refused where an example
     changes the loss, the gradient or a layer's output of another, see
     `comparison`.
  4. Rules of layers are compared with their layers, see `rules`.
  5. The sums that training takes are traced and scanned as in 2, and run on
     rows of unusual values at the same weights. Steps then run this graph,
     where they can: see `axes`.
  6. Their graph is followed from the rows to the losses and to all that is
     clipped, see `axes`, which finds every operation that joins rows, at any
     weights and for any values. Such models are refused as well.

  `independence` says what this gave:

  - 'proven': the losses and gradients of an example depend on no other example
    of the batch, for the graph of the step, if the operations of TensorFlow do
    what their documentation says; `axes` has what is assumed besides.
  - 'tested': an operation without a rule gets rows; it is logged. Then 3 alone
    was done, which finds mistakes and proves nothing.
  - 'declared': rows are joined, and `independent` says that this changes
    nothing. As 'tested'.

  That no row can stop training (2 and 5), and that nothing is kept of the rows
  (2 and 3), is searched for and not proven.

  Attributes:
    independence: of the model as last checked, see above; '' before.

  Args:
    model: the Keras model that holds this.
    losses: a function of rows and `training` that returns losses `[batch]` and
      a structure of the outputs they come from.
    variables: a function that returns the trainable variables.
    modules: what holds the Keras layers and bijectors that `losses` calls.
    what: what computes the losses, at the start of a sentence.
    example: public rows, or `None` for rows made up from shapes and dtypes.
    independent: whether the user declares what cannot be compared.
    use_rules: whether layers are computed by their rules in training, where
      these hold.
    when_built: a function that is called when all variables have been made.
  """

  def __init__(
    self,
    model: keras.Model,
    losses: Callable,
    variables: Callable,
    modules: Sequence,
    what: str,
    *,
    example: Any = None,
    independent: bool = False,
    use_rules: bool = False,
    when_built: Callable = lambda: None,
  ):
    self._model, self._losses, self._variables = model, losses, variables
    self._modules = [m for m in modules if m is not None]
    self._what, self._example = what, example
    self._independent, self._use_rules = bool(independent), use_rules
    self._ruled, self._when_built = frozenset(), when_built
    self.forget()

  def forget(self) -> None:
    """Forgets all checks: for a model that is compiled anew."""
    self._known, self._frozen, self._checked = None, [], set()
    # Of each kind of rows the graph that was checked; training runs that.
    self._graphs = []
    # States that the random layers draw from.
    self._generators = []
    self.independence = ''
    self.untracked_randomness = ''

  @property
  def layers(self) -> list[keras.layers.Layer]:
    """The Keras layers of the model."""
    return keras_layers.layers_of(*self._modules)

  def check(self, spec: Any) -> None:
    """Checks the model once, and sees later that it is still the same.

    Once for rows of one kind, as a structure of `tf.TensorSpec` has it: of
    other dtypes or shapes it computes otherwise.

    Raises:
      ValueError: for a model that could not be private.
    """
    flat = tuple(tf.nest.flatten(spec))
    if not any(_alike(flat, checked) for checked in self._checked):
      scope = self._model.distribute_strategy.scope()
      try:
        with scope, tf.summary.record_if(False):
          self._check(spec)
      except tf.errors.OpError as error:
        # Nothing private was read yet.
        if 'Table not initialized' in error.message:
          raise ValueError(
            f'A layer of {self._model.name} has no vocabulary: give the lookup '
            'or TextVectorization vocabulary=..., which counts as public, or '
            'adapt it to public rows.'
          ) from error
        raise ValueError(
          f'{self._model.name} cannot be computed on rows made up from shapes '
          f'and dtypes: {_without_stack(error.message)} If that is for the '
          'values of these rows, give codes of categories as integers, or '
          'public rows that the model can work with: example=...'
        ) from error
      if self._known is None:
        self._frozen = [x for x in self.layers if not x.trainable]
        self._known = self._trained().keys()
      self._checked.add(flat)
    now = self._trained()
    if now.keys() != self._known:
      new = sorted(now[x] for x in now.keys() - self._known) or 'fewer'
      raise ValueError(
        f'The trainable variables have changed since the first step: {new}. '
        'Compile the model again.'
      )

  def _trained(self):
    """Returns names of what is trained, and of layers that no longer rest."""
    found = {v.ref(): v.name for v in self._variables()}
    return found | {id(x): x.name for x in self._frozen if x.trainable}

  def check_before_plan(self, rows: Any, replays: bool) -> None:
    """As `check`, before a plan charges anything.

    Args:
      rows: structure of arrays or of `tf.TensorSpec`, also where the plan
        protects units of several rows.
      replays: whether steps of an earlier process are made again.

    Raises:
      ValueError: under a replay also for random numbers of the model's own or
        eager steps, which would not give the same sums again.
    """
    self.check(probe_rows.spec_of(rows))
    self._begin_replicas()
    name = self._model.name
    if replays and self._runs_eagerly:
      raise ValueError(
        f'The plan replays steps, and {name} runs eagerly: each step runs its '
        'Python code again, and may draw random numbers that nothing keeps and '
        'no check sees. A replayed step would give another sum the same noise. '
        'Resume without `replay`.'
      )
    if replays and self.untracked_randomness:
      raise ValueError(
        f'The plan replays steps, and {name} draws random numbers that no '
        f'checkpoint keeps ({self.untracked_randomness}): a replayed step '
        'would give another sum the same noise, and their difference shows '
        'what the noise should hide. Resume without `replay`.'
      )

  @property
  def _runs_eagerly(self):
    return self._model.run_eagerly or tf.config.functions_run_eagerly()

  @property
  def _secret(self):
    """The `Randomness` of the plan, if it is a secret."""
    plan = getattr(self._model.optimizer, 'plan', None)
    secret = plan is not None and not plan.randomness.seeded
    return plan.randomness if secret else None

  def _states(self):
    """Returns the states of the generators that random layers draw from."""
    states = {id(c.handle): c for c in self._generators}
    parts = tf.train.TrackableView(self._model).descendants()
    for part in parts:
      if isinstance(part, tf.random.Generator):
        for variable in getattr(part.state, 'values', [part.state]):
          with tf.init_scope():
            found = runs.Captured.of(variable)
          states.setdefault(id(found.handle), found)
    return list(states.values())

  @contextlib.contextmanager
  def _drawn_anew(self, step):
    """Has random layers draw from the secret of the plan, and its step.

    Numbers that are known, as those of `keras.utils.set_random_seed`, tell the
    place of a row in the batch, and one row more moves all that come after it.
    And a state that goes on from step to step counts the rows of batches. So
    does one that is left behind, in checkpoints.
    """
    plan = getattr(self._model.optimizer, 'plan', None)
    alone = self._model.distribute_strategy.num_replicas_in_sync == 1
    states = self._states() if plan is not None and alone else []
    if not states:
      yield
      return
    sizes = [len(state.start) for state in states]
    source = self._model.optimizer.noise_source
    now, later = source.generator_states(step, sizes)
    for state, value in zip(states, now):
      state.assign(value)
    yield
    for state, value in zip(states, later):
      state.assign(value)

  def _begin_replicas(self):
    """As `_drawn_anew`, for all steps of a fit: replicas have states each."""
    plan = getattr(self._model.optimizer, 'plan', None)
    strategy = self._model.distribute_strategy
    if plan is None or strategy.num_replicas_in_sync == 1:
      return
    states = self._states()
    if any(state.name == runs.OUTSIDE for state in states):
      raise ValueError(
        f'{self._model.name} draws from a tf.random.Generator that is no '
        'attribute of a layer: on several replicas it cannot be given the '
        'secret of the plan. Make it an attribute of the layer.'
      )
    # Processes that train together have one secret.
    first, *_ = Workers(strategy).replicas
    for i, state in enumerate(states):
      name = 'layers', plan.label, int(first), i, int(plan.step)
      key = plan.randomness.key(*name)
      state.assign(np.frombuffer(key, np.int64)[: len(state.start)])

  @tf.autograph.experimental.do_not_convert
  def check_in_step(self, rows: Any) -> None:
    """As `check`, outside of the graph that is being traced, if one is."""
    spec = probe_rows.spec_of(rows)
    if self._rows_per_unit is not None:
      spec = tf.nest.map_structure(
        lambda s: tf.TensorSpec([None, *s.shape[2:]], s.dtype), spec
      )
    with futures.ThreadPoolExecutor(1) as thread:
      thread.submit(self._check_in_step, spec).result()

  def _check_in_step(self, spec):
    self.check(spec)
    optimizer = self._model.optimizer
    if optimizer.plan is None:
      # A function of TensorFlow that makes variables is traced twice.
      scope = self._model.distribute_strategy.scope()
      with scope, tf.name_scope(optimizer._name):
        optimizer._create_all_weights(list(self._variables()))

  @property
  def _rows_per_unit(self):
    """Rows of an example of the plan, `None` where examples are rows."""
    plan = getattr(self._model.optimizer, 'plan', None)
    units = getattr(plan, 'units', None)
    return None if units is None else units.max_rows_per_unit

  def private_gradients(
    self, rows: Any, weights: Optional[tf.Tensor], step: Optional[tf.Tensor]
  ) -> tuple[list[tf.Tensor], Optional[tf.Tensor]]:
    """As `private_gradients_of` of the optimizer, for a model that is checked.

    Nothing of the rows is written down: not in errors, and not by `tf.summary`
    in a layer, which a TensorBoard callback would switch on. Where examples are
    units of k rows, rows are `[batch, k, ...]` and weights `[batch, k]`.
    """
    optimizer, variables = self._model.optimizer, list(self._variables())
    if weights is not None and weights.shape.rank != (
      1 if self._rows_per_unit is None else 2
    ):
      raise ValueError(
        f'weights have shape {weights.shape}; they must be [batch], one for '
        'each example.'
      )
    # What is refused of a step without looking at rows is said in words.
    optimizer.check_step(variables, step)

    def sums(rows, weights):
      if self._secret is not None and not tf.executing_eagerly():
        tf.random.set_seed(None)  # Of this graph: its operations have none.
      graph = self._graph_for(rows, weights)
      if graph is not None:
        return graph(rows, weights)
      return optimizer.sums_of(self._step_losses, rows, variables, weights)

    with self._drawn_anew(step), tf.summary.record_if(False):
      found = errors.call(
        optimizer.noised, sums, rows, variables, weights, step
      )
    keras_layers.refuse_batch_losses(self.layers)
    return found

  def _graph_for(self, rows, weights):
    """Returns the graph that was checked for such rows, if a step can run it.

    Only under a plan, whose optimizer clips as it did when this was made.
    Replicas compute with variables of their own, eager steps in Python, and XLA
    with other loops.
    """
    optimizer = self._model.optimizer
    if tf.executing_eagerly() or optimizer.plan is None:
      return None
    if tf.distribute.has_strategy() or fallback.under_xla():
      return None
    flat = tuple(tf.nest.flatten(probe_rows.spec_of((rows, weights))))
    for owner, spec, graph in self._graphs:
      if owner is optimizer and _alike(flat, tf.nest.flatten(spec)):
        return lambda *given: graph(
          *tf.nest.pack_sequence_as(spec, tf.nest.flatten(given))
        )
    return None

  @unconverted
  def _step_losses(self, rows):
    """Returns the losses of a step, by the rules that hold."""
    ruled = [layer for layer in self.layers if id(layer) in self._ruled]
    with gradients.layers.layer_rules(ruled):
      return self._losses(rows, training=True)[0]

  def _check(self, spec):
    keras_layers.refuse_layers(*self._modules)
    rows, others = probe_rows.rows_for(spec, self._example)
    # Makes the variables, and layers that are made in `call`. Nothing is
    # computed: it may fail, or never end.
    infer = lambda rows: self._losses(rows, training=False)[0]
    start = time.monotonic()
    runs.trace(lambda rows, unused_weights: infer(rows), rows, tf.float64)
    took = time.monotonic() - start
    if took > _SLOW:
      logging.info(
        'tfdpflows: checks %s before it trains, once: about %s.',
        self._model.name,
        progress.about(_TRACES * took),
      )
    layers, variables = self.layers, list(self._variables())
    keras_layers.refuse_layers(*self._modules)
    keras_layers.refuse_batch_losses(layers)
    keras_layers.penalties_of(layers)
    if not variables:
      raise ValueError(f'{self._model.name} has no trainable variables.')
    self._when_built()
    with _one_replica():
      plain, inference, tracked = self._runs(layers, variables, rows)
      graph_scan.refuse_operations(
        plain.traced, layers, self._what, lambda: plain.traced_for(rows)
      )
      compared = comparison.Comparison(
        plain, inference, rows, others, self._what
      )
      try:
        compared.refuse_changes()
        steps = self._weight_steps(plain, variables, rows)
        for step in steps:
          with runs.moved(variables, step):
            compared.check()
        compared.refuse_mixing(self._independent)
      finally:
        plain.restore()
        inference.restore()
      # Replicas draw numbers of their own each, which nothing keeps.
      alone = self._model.distribute_strategy.num_replicas_in_sync == 1
      untracked = plain.untracked_randomness(tracked if alone else [])
      self.untracked_randomness = ', '.join(untracked)
      self._generators += plain.generators
      keras_layers.refuse_batch_losses(layers)
      if self._use_rules:
        step = steps[1] if len(steps) > 1 else None
        ruled = rules.rules_that_hold(
          infer, layers, rows, variables, inference, step
        )
        self._ruled = frozenset(map(id, ruled))
      graph = self._check_sums(compared, layers, variables, steps, rows, spec)
      if graph is not None and not plain.own_state:
        self._graphs.append((self._model.optimizer, *graph))
    keras_layers.refuse_batch_losses(layers)

  def _runs(self, layers, variables, rows):
    """Returns runs as in training; as in inference; and tracked variables."""
    parts = tf.train.TrackableView(self._model).descendants()
    tracked = [part for part in parts if isinstance(part, tf.Variable)]

    def observed(rows):
      outputs = []
      with keras_layers.observed(layers, outputs):
        losses, last = self._losses(rows, training=True)
      last = [('The model', x) for x in tf.nest.flatten(last)]
      return losses, outputs + last

    def without_randomness(rows):
      with keras_layers.without_randomness(layers):
        return observed(rows)

    plain = inference = runs.RepeatableRuns(observed, variables, rows, tracked)
    if keras_layers.random_layers(layers):
      inference = runs.RepeatableRuns(
        without_randomness, variables, rows, tracked
      )
    return plain, inference, tracked

  def _weight_steps(self, plain, variables, rows):
    """Returns steps to the weights that the model is checked at."""

    def is_finite():
      pair = plain.pair(rows, rows, 0)
      return all(np.all(np.isfinite(run.losses)) for run in pair)

    if not is_finite():
      raise ValueError(
        f'{self._what} is not finite on rows made up from shapes and dtypes, '
        'so that it cannot be found out whether examples are independent. '
        'Either it is not finite on any rows, such as a cross-entropy of '
        'several classes on one output: look at the loss and its arguments. Or '
        'the model cannot work with such rows: give public ones that it can, '
        'example=...'
      )
    steps = runs.weight_steps(variables, is_finite)
    if len(steps) < 3:
      logging.warning(
        'tfdpflows: %s is not finite at other weights, on either side, on rows '
        'made up for it; it was checked at %d settings of the weights, not 3.',
        self._what.lower(),
        len(steps),
      )
    return steps

  def _follow(self, traced, ingredients, kept, layers, count):
    """Follows rows through the graph of the sums; refuses where they meet.

    Those of one unit may meet. `count` is how many arguments are of examples.
    Returns how far it is known that others do not.
    """
    public = [*ingredients.shared, *kept]
    found = axes.follow(traced, range(count), ingredients.of_examples, public)
    # Eager steps run Python, and draw with the seeds of the whole program.
    state = 'tested' if self._runs_eagerly else 'proven'
    if found.joined and not self._independent:
      first = found.joined[0]
      raise ValueError(
        f'{graph_scan.place(first.path, layers, self._what)} mixes examples: '
        f'the operation {first.op} {first.why}, so that an example may change '
        'the loss or the gradient of another, at these weights or at others, '
        'and clipping each bounds nothing. Replace it by one that treats each '
        f'example by itself. {comparison.DECLARE}'
      )
    if not found.apart:
      state = 'declared' if found.joined else 'tested'
      first = (found.joined or found.unknown)[0]
      logging.warning(
        'tfdpflows: that no example changes what another adds to an update was '
        'tested on a few made-up rows and is not proven: %s uses the operation '
        '%s, which %s.',
        graph_scan.place(first.path, layers, self._what),
        first.op,
        first.why,
      )
    return state

  def _refuse_seeds(self, definition, layers):
    seeded = runs.seeded_operations(definition)
    if seeded and self._secret is not None:
      op, path = seeded[0]
      raise ValueError(
        f'{graph_scan.place(path, layers, self._what)} draws random numbers '
        f'with a seed of its own (the operation {op}): whoever knows it knows '
        'the numbers of each place in the batch, and one row more moves all '
        'rows behind it. Drop the seed, or give the plan one (seed=...), whose '
        'statement then says so.'
      )

  def _kept(self, traced, definition, layers):
    """Returns what a state is given: how many rows there are is private.

    What is kept in a function, a loop or a branch is refused, as it is not
    followed, and so is a state of random numbers: set back, it repeats.
    """
    for node in _in_functions(definition):
      if _keeps(node):
        place = graph_scan.place(node.name, layers, self._what)
        raise ValueError(
          f'{place} changes a variable or another state inside of a function, '
          f'a loop or a branch (the operation {node.op}), where it is not '
          'known what is kept of rows. Change it in `call` itself, or not at '
          'all.'
        )
    found = []
    outer = {inner.name: handle for handle, inner in traced.graph.captures}
    for op in traced.graph.get_operations():
      if _keeps(op.node_def):
        first = outer.get(op.inputs[0].name) if len(op.inputs) else None
        if first is not None and runs.is_generator(first):
          place = graph_scan.place(op.name, layers, self._what)
          raise ValueError(
            f'{place} sets the state of a tf.random.Generator in each step, '
            'which makes its numbers known. Let it draw, and no more.'
          )
        writes = graph_scan.writes_variable(op.type)
        found += op.inputs[1:] if writes else op.inputs
    return found

  def _check_sums(self, compared, layers, variables, steps, rows, spec):
    """Scans the sums that training takes, and runs them on unusual rows.

    Returns what the graph is called with, and it, if training can take it.
    """
    optimizer = self._model.optimizer
    if optimizer.plan is not None:
      # Steps may run this graph: it clips as the plan has charged for.
      optimizer.noise_source.check_settings(optimizer)
    sums = optimizer.sums_of

    def run(rows, weights):
      tf.random.set_seed(None)  # Of this graph, as in training.
      return sums(self._step_losses, rows, variables, weights)

    shape, count = [], len(tf.nest.flatten(spec))
    if self._rows_per_unit is not None:
      # Weights of rows are their unit's.
      shape, count = [self._rows_per_unit], count + 1
    of_units = lambda rows: tf.nest.map_structure(
      lambda x: probe_rows.repeated(x, shape), rows
    )
    with observed() as ingredients:
      traced = runs.trace(run, of_units(spec), tf.float32, weights_shape=shape)
    # Loops are those of the plain step; vectorized, they cannot be followed.
    graph_scan.refuse_operations(traced, layers, self._what)
    definition = traced.graph.as_graph_def()
    self._refuse_seeds(definition, layers)
    kept = self._kept(traced, definition, layers)
    state = self._follow(traced, ingredients, kept, layers, count)
    if state != 'proven':
      compared.refuse(self._independent)
    # The least of all kinds of rows.
    states = ['', 'proven', 'tested', 'declared']
    self.independence = max(self.independence, state, key=states.index)
    weights = tf.ones([tf.nest.flatten(rows)[0].shape[0], *shape])
    captured = runs.captured_variables(traced)
    held = 'as they are made up'
    try:
      for step in steps:
        with runs.moved(variables, step):
          traced(of_units(rows), weights)
          for unusual, values in probe_rows.unusual(rows):
            held = values
            traced(of_units(unusual), weights)
    except tf.errors.OpError as error:
      at = '' if step is None else ', at weights that training may come to'
      place, said = _place_of(error, layers, self._what)
      raise ValueError(
        f'{place} cannot be computed where rows hold {held}{at} (made up: '
        f'{said}). One such row would end training, which reveals that it is '
        'there. Select the usable rows with usable=..., replace '
        'the values in the model (tf.where, tf.clip_by_value), or use a layer '
        'or loss with a rule (Embedding itself, SparseCategoricalCrossentropy).'
      ) from None
    finally:
      runs.restore(captured)
    if ingredients.padded:
      return None  # Training adds an example to an empty batch.
    return traced.structured_input_signature[0], traced


def _in_functions(definition):
  """Returns the nodes of all functions that a graph calls; some it only has."""
  functions_of = shape_arithmetic.functions_of
  functions = {f.signature.name: f for f in definition.library.function}
  waiting = {name for node in definition.node for name in functions_of(node)}
  seen, found = set(), []
  while waiting:
    name = waiting.pop()
    seen.add(name)
    if name in functions:
      found += functions[name].node_def
      inner = {f for n in functions[name].node_def for f in functions_of(n)}
      waiting |= inner - seen
  return found


def _keeps(node):
  """Whether a node keeps what it is given in a state."""
  if graph_scan.writes_variable(node.op):
    return True
  return graph_scan.may_keep(node.op) and not any(
    shape_arithmetic.functions_of(node)
  )


def _place_of(error, layers, what):
  """Returns where an error on probe rows arose, and what it says."""
  node = re.search(r'{{node ([^}]*)}}', error.message)
  place = graph_scan.place(node.group(1) if node else '', layers, what)
  return place, runs.said_by(error)


def _alike(spec, checked):
  """Whether rows are such as a model was checked for."""
  return len(spec) == len(checked) and all(
    a.dtype == b.dtype and a.shape[1:].is_compatible_with(b.shape[1:])
    for a, b in zip(spec, checked)
  )


def _one_replica():
  """A context in which variables of several replicas are those of the first."""
  if not tf.distribute.has_strategy():
    return contextlib.nullcontext()
  return tf.distribute.ReplicaContext(tf.distribute.get_strategy(), 0)


def _without_stack(message):
  """Returns what an error of a graph says, without the lines of the program."""
  lines = [line.strip() for line in message.splitlines() if line.strip()]
  stack = [n for n, line in enumerate(lines) if line.startswith('File "')]
  return ' '.join(lines[stack[-1] + 1 if stack else 0 :])
