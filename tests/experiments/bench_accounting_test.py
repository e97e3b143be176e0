"""The benchmark of the accounting runs, and compares what it says."""

from experiments import bench_accounting


def test_smoke():
  names = list(bench_accounting.questions())[1:2]
  result = bench_accounting.run(names, rounds=1, sizes=(10, 100), repeats=2)
  times = result['accountants'][names[0]]
  assert {'pld', 'rdp', 'dp_accounting pld'} <= set(times)
  assert times['ratio'] > 0
  # The same question was asked, and was answered from memory the second time.
  assert times['pld']['epsilon'] < times['rdp']['epsilon']
  ratio = times['pld']['epsilon'] / times['dp_accounting pld']['epsilon']
  assert 0.98 < ratio < 1.001
  assert times['pld']['warm_s'] < times['pld']['cold_s']
  assert result['import']['tensorflow'] is False
  assert 0 < result['import']['seconds'] < 10
  assert all(set(found) == {'10', '100'} for found in result['ledger'].values())
  table = bench_accounting.table(result)
  assert f'| {names[0]} |' in table
  assert 'without TensorFlow' in table
