"""The benchmark of a training step runs, and compares what it says."""

from experiments import bench_step


def test_smoke():
  result = bench_step.run(
    3, 2, (8,), batch=16, rounds=2, tf_privacy_rounds=1, xla=False
  )
  assert set(result['median_ms']) == {
    'not private',
    'tfdpflows DPKerasAdam',
    'TF Privacy VectorizedDPKerasAdam',
  }
  assert result['ratio_to_not_private']['not private'] == 1
  assert result['steps_timed']['TF Privacy VectorizedDPKerasAdam'] == 1
