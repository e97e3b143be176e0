"""How far a plan is: which step comes next, and whose it is."""

from __future__ import annotations

import contextlib
import threading

from tfdpflows.training import replay, replicas


class PlanProgress:
  """Counts the steps of one plan, and lets one optimizer make them.

  A step is drawn, and then it is made: its noise is used. In one process no
  step is made twice. One that was drawn for a training and not made is drawn
  again by the next; one that was drawn outside of any training counts as made,
  since nobody knows what for, and so does one that an earlier process charged,
  unless it is replayed.

  Attributes:
    step: the next step to be drawn.
    replays: whether steps of an earlier process may be made again.
    trained: the optimizer that trains now, or `None`.
    training: names the training that runs now, `None` outside of any.
  """

  def __init__(self):
    self.step = 0
    self.replays = False
    self.trained = self.training = None
    # Below it steps may have been made by an earlier process.
    self._earlier = 0
    # Below it steps were drawn outside of any training.
    self._handed_out = 0
    # The optimizer that has made steps, or is to make them again.
    self._trainee = None
    # All optimizers of the plan, each with what its updates depend on.
    self._made = []
    self._lock = threading.Lock()

  def add(self, optimizer):
    """Notes an optimizer of the plan, as it was made."""
    self._made.append((optimizer, replay.facts_of(optimizer)))

  @property
  def facts(self):
    """What updates depend on, of the optimizer that trains; for the ledger."""
    if self.trained is None:
      return {'optimizer': None}
    return self._facts_of(self.trained)

  def resume(self, optimizer, replay):
    """See `TrainingPlan.resume`; `charged_earlier` comes next."""
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
    self.replays, self._trainee, self.step = replay, optimizer, step

  def charged_earlier(self, steps):
    """Notes how many steps an earlier process has charged, or made."""
    self._earlier = steps
    if not self.replays:
      self.step = steps

  @contextlib.contextmanager
  def train(self, optimizer):
    """See `TrainingPlan.training`."""
    self._facts_of(optimizer)
    replicas.current_strategy()  # Refuses those that are not supported.
    if self.trained is not None:
      raise ValueError('The plan is training another model right now.')
    if self._trainee not in (None, optimizer):
      raise ValueError(
        f'Another optimizer of this plan has trained, {self._trainee._name}: '
        f'{optimizer._name} would see its batches again under other noise. Go '
        'on with that one, or make a new plan, with its own budget.'
      )
    self.trained, self.training = optimizer, object()
    try:
      self.begin()
      yield
    finally:
      steps = optimizer.plan_steps
      with self._lock:  # Or a batch that is being drawn would open its step.
        steps.close()
        self.step = self._following()
        if steps.made_any:
          self._trainee = optimizer
        self.trained = self.training = None

  def begin(self):
    """See `TrainingPlan.begin`."""
    workers = replicas.Workers(replicas.current_strategy())
    step = self._following()
    workers.agree(lambda: [None, None, step])
    with self._lock:
      self.step = step
      self.trained.plan_steps.open(step)

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
        else:
          self.trained.plan_steps.charged(self.step)
        return step

    return draw

  def _following(self):
    """Returns the first step that the optimizer in training may make."""
    steps = self.trained.plan_steps
    done, unused = int(steps.done.numpy()), max(steps.unused, self._handed_out)
    if self.replays and done >= unused:
      return done
    # Weights that were taken back repeat nothing of what the earlier process
    # did: its steps are not theirs.
    return max(unused, self._earlier)

  def _facts_of(self, optimizer):
    for made, facts in self._made:
      if made is optimizer:
        return facts
    raise ValueError(
      f'{optimizer._name} was not made by this plan: take plan.optimizer(...).'
    )
