"""How far a plan is: which step comes next, and whose it is."""

from __future__ import annotations

import contextlib
import threading

from tfdpflows import distribution, replay
from tfdpflows.accounting import owners


class PlanProgress:
  """Counts the steps of one plan, and lets one optimizer make them.

  A step is drawn, and then it is made: its noise is used. In one process no
  step is made twice. One that was drawn for a training and not made is drawn
  again by the next; one that was drawn outside of any training counts as made,
  since nobody knows what for.

  Args:
    steps: number of steps of the plan.

  Attributes:
    step: the next step to be drawn.
    resumed: whether steps of an earlier process may be replayed.
    trained: the optimizer that trains now, or `None`.
    training: names the training that runs now, `None` outside of any.
  """

  def __init__(self, steps):
    self.step = 0
    self.resumed = False
    self.trained = self.training = None
    self._steps = steps
    # Below it steps may have been made by an earlier process.
    self._replayed = 0
    # Below it steps were drawn outside of any training.
    self._handed_out = 0
    # The optimizer that has made steps, or is to make them again.
    self._trainee = None
    # All optimizers of the plan, each with what its updates depend on; and
    # what those of the optimizer depend on that steps were charged for.
    self._made = []
    self._charged_for = None
    self._lock = threading.Lock()

  def add(self, optimizer):
    """Notes an optimizer of the plan, as it was made."""
    self._made.append((optimizer, replay.facts_of(optimizer)))

  @property
  def facts(self):
    """What updates depend on, of the optimizer that will train; or `None`."""
    optimizer = self.trained or self._trainee
    if optimizer is not None:
      return self._facts_of(optimizer)
    return self._made[-1][1] if self._made else None

  def charged(self, facts, earlier):
    """Notes for which optimizer steps are charged.

    Args:
      facts: its `facts`, or `None` where there was no optimizer.
      earlier: number of steps that were charged by an earlier process.
    """
    self._charged_for = facts
    self._replayed = earlier if self.resumed else 0

  def resume(self, optimizer):
    """See `TrainingPlan.resume`."""
    self._facts_of(optimizer)
    step = int(optimizer.plan_step.numpy())
    updates = int(optimizer.iterations.numpy())
    if updates and not step:
      raise ValueError(
        f'The optimizer has made {updates} updates, and none of them is a step '
        'of this plan: which noise it has used cannot be told. Restore the '
        'whole optimizer with tf.train.Checkpoint, or train it under a new '
        'plan without plan.resume.'
      )
    self.resumed, self._trainee, self.step = True, optimizer, step

  @contextlib.contextmanager
  def train(self, optimizer):
    """See `TrainingPlan.training`."""
    facts = self._facts_of(optimizer)
    distribution.current_strategy()  # Refuses those that are not supported.
    if self.trained is not None:
      raise ValueError('The plan is training another model right now.')
    if self._trainee not in (None, optimizer):
      raise ValueError(
        f'Another optimizer of this plan has trained, {self._trainee._name}: '
        f'{optimizer._name} would see its batches again under other noise. Go '
        'on with that one, or make a new plan, with its own budget.'
      )
    if self._charged_for is not None:
      different = owners.differences(self._charged_for, facts)
      if different:
        raise ValueError(
          'The batches were drawn for an optimizer with another '
          f'{different}. Make the optimizer before the first plan.dataset(x), '
          'and train that one.'
        )
    self.trained, self.training = optimizer, object()
    try:
      self.begin()
      yield
    finally:
      steps = optimizer.plan_steps
      steps.close()
      with self._lock:
        self.step = self._following()
        if steps.made_any:
          self._trainee = optimizer
        self.trained = self.training = None

  def begin(self):
    """See `TrainingPlan.begin`."""
    workers = distribution.Workers(distribution.current_strategy())
    step = self._following()
    workers.agree(lambda: [None, None, step])
    with self._lock:
      self.step = step
    self.trained.plan_steps.open(step, self._steps)

  def drawing(self, stop, charge):
    """Returns a function that draws the next step below `stop`, charged.

    It returns `None` where there is none left. What draws for a training draws
    nothing once that is over.

    Args:
      stop: see above.
      charge: a function of the number of steps there will have been.
    """
    training = self.training

    def draw():
      with self._lock:
        step = self.step
        if step >= stop or self.training is not training:
          return None
        charge(step + 1)
        self.step = step + 1
        if training is None:
          self._handed_out = self.step
        return step

    return draw

  def _following(self):
    """Returns the first step that the optimizer in training may make."""
    steps = self.trained.plan_steps
    done = int(steps.done.numpy())
    if self.resumed and done < self._replayed:
      # The weights are those of that step: under the noise of a later one
      # they would not repeat what the earlier process did.
      return done
    if self.resumed:
      return max(done, steps.unused)
    return max(steps.unused, self._handed_out)

  def _facts_of(self, optimizer):
    for made, facts in self._made:
      if made is optimizer:
        return facts
    raise ValueError(
      f'{optimizer._name} was not made by this plan: take plan.optimizer(...).'
    )
