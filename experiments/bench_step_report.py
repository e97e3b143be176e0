"""Tables and a figure of what `bench_step` measured."""

from __future__ import annotations

import os
import re

from matplotlib.figure import Figure

from experiments import bench_step_cases as cases

_TITLES = {
  'maf': 'masked autoregressive flow, {event_size} columns, {num_blocks} '
  'blocks with hidden layers of {hidden}, batch {batch:,}',
  'spline': 'spline flow, {event_size} columns, {num_blocks} blocks '
  'with hidden layers of {hidden}, batch {batch:,}',
  'mlp': 'Keras classifier, {event_size} inputs, hidden layers of {hidden}, '
  '{num_classes} classes, batch {batch:,}',
  'table': 'conditional histograms as tables have them, {event_size} columns '
  'of {num_bins} bins, {hidden} hidden units, batch {batch:,}',
}
_SIZES = {
  'batch': 'batch',
  'width': 'width of hidden layers',
  'num_blocks': 'blocks',
  'event_size': 'columns',
}
_BEGIN = (
  '<!-- Written by experiments/bench_step.py, whose --render names it. -->'
)
_RESULTS = 'experiments/results/bench_step.json'
_END = '<!-- End of what bench_step has written. -->'
# Colours of Okabe and Ito.
_BLUE, _GREY, _ORANGE = '#0072b2', '#999999', '#d55e00'


def tables(results):
  """Returns the Markdown tables of the parts that there are.

  Args:
    results: what `bench_step` writes as JSON.
  """
  makers = {
    'steps': _steps,
    'peers': _peers,
    'sweeps': _sweeps,
    'tracing': _tracing,
    'memory': _memory,
  }
  lines = []
  for part, make in makers.items():
    if part in results:
      lines += make(results[part]['found']) + [_of_run(results[part])] + ['']
  if 'gpu' in results:
    lines += _gpu(results['gpu']['found'])
  return '\n'.join(lines).rstrip() + '\n'


def write_section(path, results, figure=None):
  """Puts the tables into a Markdown file, in place of those there already.

  Args:
    path: the file; it is made if it is not there.
    results: as in `tables`.
    figure: name of the figure beside it, or `None`.
  """
  text = ''
  if os.path.exists(path):
    with open(path, encoding='utf-8') as file:
      text = file.read()
  body = tables(results)
  if figure:
    body = (
      '![Ratio of each private step to the step without privacy, as bars; and '
      f'microseconds per example against the batch]({figure})\n\n{body}'
    )
  section = f'{_BEGIN}\n\n{body}\n{_END}'
  if _BEGIN in text and _END in text:
    head, rest = text.split(_BEGIN, 1)
    text = head + section + rest.split(_END, 1)[1]
  else:
    text = f'{text}\n' if text else '# Per-example gradients\n\n'
    text += f'## Measured\n\n{section}\n'
  with open(path, 'w', encoding='utf-8') as file:
    file.write(text)


def draw(results):
  """Returns a matplotlib figure: bars of ratios, and cost against batch."""
  figure = Figure(figsize=(11, 6), layout='constrained')
  left, right = figure.subplots(1, 2, gridspec_kw={'width_ratios': (3, 2)})
  if 'steps' in results:
    _draw_ratios(left, results['steps']['found']['maf'])
  if 'sweeps' in results:
    _draw_cost(right, results['sweeps']['found'].get('batch', []))
  for ax in (left, right):
    ax.spines[['top', 'right']].set_visible(False)
    ax.grid(color='#dddddd', linewidth=0.7)
    ax.set_axisbelow(True)
  return figure


def _draw_ratios(ax, found):
  names = [n for n in found['variants'] if n != cases.FLOOR][::-1]
  for place, name in enumerate(names):
    ratio = found['variants'][name]['ratio']
    low, high = found['variants'][name]['ratio_quartiles']
    color = _BLUE if name.startswith('tfdpflows') else _GREY
    ax.barh(place, ratio, color=color)
    ax.plot([low, high], [place, place], color='black', linewidth=1)
    ax.annotate(
      f'{ratio:.2f}' if ratio < 10 else f'{ratio:,.0f}',
      (max(ratio, high), place),
      (4, 0),
      textcoords='offset points',
      va='center',
      fontsize=9,
    )
  ax.set_yticks(range(len(names)), names, fontsize=9)
  ax.set_xscale('log')
  ax.xaxis.set_major_formatter(lambda value, _: f'{value:g}')
  ax.margins(x=0.12)
  ax.set_xlabel('time of a step / without privacy (logarithmic)')
  ax.set_title(_title('maf', found['shape']), loc='left', fontsize=9)


def _draw_cost(ax, points):
  at = [p['value'] for p in points]
  for key, label, color in (
    ('private', 'private (Flat)', _BLUE),
    ('not_private', 'not private', _ORANGE),
  ):
    costs = [1e3 * p[f'{key}_ms'] / p['value'] for p in points]
    ax.plot(at, costs, 'o-', color=color, label=label)
  ax.set_xscale('log', base=4)
  ax.xaxis.set_major_formatter(lambda value, _: f'{value:,.0f}')
  ax.set_ylim(0)
  ax.set_xlabel('batch')
  ax.set_ylabel('microseconds per example')
  ax.legend(frameon=False)


def _title(model, shape):
  hidden = ' and '.join(str(n) for n in shape['hidden_units'])
  return _TITLES[model].format(hidden=hidden, **shape)


def _steps(found):
  lines = []
  for model, entry in found.items():
    variants = entry['variants']
    lines += [
      f'One training step, {_title(model, entry["shape"])}:',
      '',
      '| | median ms | quartiles | ratio | its quartiles | '
      'with XLA, ms | ratio to not private, XLA |',
      '|---|---:|---:|---:|---:|---:|---:|',
    ]
    for name, one in variants.items():
      if name.endswith(cases.XLA):
        continue
      cells = [
        _ms(one['median_ms']),
        ' to '.join(map(_ms, one['quartiles_ms'])),
        _ratio(one['ratio']),
        ' to '.join(map(_ratio, one['ratio_quartiles'])),
      ]
      other = variants.get(name + cases.XLA)
      if other:
        cells += [_ms(other['median_ms']), _ratio(other['ratio_xla'])]
      else:
        cells += ['', '']
      lines.append(f'| {name} | {" | ".join(cells)} |')
    lines.append('')
  return lines


def _peers(found):
  lines = [
    'The same flow in other frameworks, by turns in one session:',
    '',
    '| | median ms | ratio to its own framework, not private | '
    'ratio to tfdpflows Flat |',
    '|---|---:|---:|---:|',
  ]
  for framework, ways in found['steps'].items():
    for way, one in ways.items():
      cells = [
        _ms(one['median_ms']),
        _ratio(one['ratio']),
        _ratio(one['ratio_to_ours']),
      ]
      lines.append(f'| {framework}, {way} | {" | ".join(cells)} |')
  for framework, reason in found['skipped'].items():
    lines += ['', f'{framework} was skipped: {reason}']
  if found['versions']:
    named = ', '.join(f'{n} {v}' for n, v in found['versions'].items())
    lines += ['', f'Versions: {named}.']
  return lines + ['']


def _gpu(runs):
  lines = [
    f'The same steps on a GPU, compiled by XLA ({runs[0]["device"]}; JAX '
    f'{runs[0]["jax"]}, `{runs[0]["xla_flags"]}`; median of '
    f'{runs[0]["rounds"]} times {runs[0]["steps_in_a_round"]} steps):',
    '',
    '| | batch | median ms | ratio to not private | as TensorFlow on a CPU |',
    '|---|---:|---:|---:|---|',
  ]
  for run in runs:
    for one in run['steps']:
      cells = [
        f'{one["model"]}, {one["variant"].removesuffix(cases.XLA)}',
        f'{one["batch"]:,}',
        f'{one["median_ms"]:.2f}',
        _ratio(one['ratio']),
        'yes' if one['agrees'] else 'NO',
      ]
      lines.append(f'| {" | ".join(cells)} |')
  batch = cases.MODELS['maf']['batch']
  peers = {k: v for run in runs for k, v in run['peers'].items()}
  for name, one in peers.items():
    times = one.get('median_ms', {})
    for way, time in times.items():
      ratio = _ratio(time / times['not private'])
      cells = f'{batch:,} | {time:.2f} | {ratio} | '
      lines.append(f'| maf, {name}, {way} | {cells}|')
  return lines + ['']


def _sweeps(found):
  lines = []
  for size, points in found.items():
    lines += [
      f'Flat clipping against {_SIZES[size]}, all else as in the flow above:',
      '',
      f'| {_SIZES[size]} | not private, ms | private, ms | ratio | '
      'its quartiles | private, µs per example |',
      '|---:|---:|---:|---:|---:|---:|',
    ]
    for one in points:
      cells = [
        f'{one["value"]:,}',
        _ms(one['not_private_ms']),
        _ms(one['private_ms']),
        _ratio(one['ratio']),
        ' to '.join(map(_ratio, one['ratio_quartiles'])),
        f'{one["private_us_per_example"]:.1f}',
      ]
      lines.append(f'| {" | ".join(cells)} |')
    lines.append('')
  return lines


def _tracing(found):
  counts = list(next(iter(found.values())))
  lines = [
    'Seconds of the first step (tracing, compiling, one step), by blocks:',
    '',
    f'| | {" | ".join(counts)} |',
    f'|---|{"---:|" * len(counts)}',
  ]
  for variant, times in found.items():
    cells = [f'{times[count]:.1f}' for count in counts]
    lines.append(f'| {variant} | {" | ".join(cells)} |')
  return lines + ['']


def _memory(found):
  names = list(dict.fromkeys(name for one in found for name in one['mb']))
  lines = [
    'Peak memory of a step, MB above the process before it (ratio to the step '
    'that is not private):',
    '',
    f'| batch | {" | ".join(names)} |',
    f'|---:|{"---:|" * len(names)}',
  ]
  for one in found:
    cells = [
      f'{one["mb"][name]:,.0f} ({_ratio(one["ratio"][name])})'
      if name in one['mb']
      else ''
      for name in names
    ]
    lines.append(f'| {one["batch"]:,} | {" | ".join(cells)} |')
  return lines + ['']


def _of_run(part):
  about = part['run']
  # Parts that were run into files of their own are merged into this one.
  command = re.sub(r'--output=\S+', f'--output={_RESULTS}', about['command'])
  return (
    f'`{command}`: {about["wall_s"]:.0f} s on {about["cores"]} cores '
    f'({about["processor"]}), TensorFlow {about["versions"]["tensorflow"]}; '
    f'load {about["load"][0]:.1f} before, {about["load"][1]:.1f} after.\n'
  )


def _ms(value):
  return f'{value:,.1f}' if value < 1000 else f'{value:,.0f}'


def _ratio(value):
  return f'{value:.2f}' if value < 10 else f'{value:,.0f}'
