"""Private choice of hyper-parameters: a search that is paid for."""

from tfdpflows.tuning.search import Selected, Trial, random_search
from tfdpflows.tuning.trials import draw_num_trials

__all__ = ['Selected', 'Trial', 'draw_num_trials', 'random_search']
