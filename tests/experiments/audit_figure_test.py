"""The figure of the docs on auditing."""

from experiments import audit_figure


def test_an_attack_is_below_its_claim():
  title = 'Gaussian, noise multiplier 1'
  figure = audit_figure.draw(
    num_runs=1000, cases={title: audit_figure.CASES[title]}
  )
  claimed, attack, _ = figure.axes[0].lines
  assert claimed.get_label() == 'most by the claim'
  # The rates of 1,000 runs vary by a few percent.
  assert (attack.get_ydata() <= claimed.get_ydata() + 0.08).all()
