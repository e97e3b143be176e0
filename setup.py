"""The package: what it is called, what it needs and what it installs."""

import pathlib
import re

import setuptools

_HERE = pathlib.Path(__file__).resolve().parent

# Pinned exactly where a newer or an older one does not work: TF Privacy 0.9.0
# itself asks for this dp-accounting, and TFP 0.23 is written for Keras 3 first.
# TensorFlow 2.15 brings Keras 2 with it; later ones need the tf-keras of their
# own version, which pip finds because tf-keras names its TensorFlow.
_REQUIRES = [
  'absl-py>=1.0,<2',
  'cloudpickle>=1.3',
  'dp-accounting==0.4.3',
  'jinja2>=3.0',
  'joblib>=1.3',
  'matplotlib>=3.6',
  'numpy>=1.23.5,<2',
  'pandas>=2',
  'scikit-learn>=1.2',
  'scipy>=1.9',
  'tensorflow>=2.15.1,<3',
  'tensorflow-privacy==0.9.0',
  'tensorflow-probability==0.22.1',
  'tf-keras>=2.15.1,<3',
  'tqdm>=4.60',
]
# Later ones need NumPy 2.
_ARROW = ['pyarrow>=14,<23']
# For tables that many machines encode.
_BEAM = ['apache-beam>=2.60', *_ARROW]
# statsmodels carries the table of the demonstration.
_DEMO = ['statsmodels>=0.14']
# skops saves scikit-learn teachers without pickle.
_PATE = ['skops>=0.9']
# PyTables reads the files of MIMIC-Extract.
_MIMIC = ['tables>=3.8']
# The site, and its reference from docstrings.
_DOCS = ['mkdocs>=1.6,<2', 'mkdocs-material>=9.5', 'mkdocstrings-python>=1.18']
_TEST = [
  *_ARROW,
  *_DEMO,
  *_DOCS,
  *_PATE,
  'hypothesis>=6.80',
  'pytest>=7.4',
  'pytest-xdist>=3.3',
]
_DEV = [*_TEST, 'ruff>=0.6']


def _version():
  text = (_HERE / 'tfdpflows' / 'version.py').read_text(encoding='utf-8')
  return re.search(r"^__version__ = '([^']+)'$", text, re.MULTILINE).group(1)


setuptools.setup(
  name='tfdpflows',
  version=_version(),
  description=(
    'Differentially private normalizing flows and synthetic tables for '
    'TensorFlow Probability and TensorFlow Privacy'
  ),
  long_description=(_HERE / 'README.md').read_text(encoding='utf-8'),
  long_description_content_type='text/markdown',
  license='Apache-2.0',
  license_files=['LICENSE'],
  python_requires='>=3.9,<3.12',
  packages=setuptools.find_packages(include=['tfdpflows', 'tfdpflows.*']),
  package_data={'': ['*.css', '*.html', '*.json', 'py.typed']},
  install_requires=_REQUIRES,
  extras_require={
    'arrow': _ARROW,
    'beam': _BEAM,
    'demo': _DEMO,
    'dev': _DEV,
    'docs': _DOCS,
    'mimic': _MIMIC,
    'pate': _PATE,
    'tensorboard': ['tensorboard'],
    'test': _TEST,
  },
  entry_points={'console_scripts': ['tfdpflows=tfdpflows.cli:main']},
  classifiers=[
    'Development Status :: 4 - Beta',
    'Intended Audience :: Science/Research',
    'License :: OSI Approved :: Apache Software License',
    'Programming Language :: Python :: 3.9',
    'Programming Language :: Python :: 3.10',
    'Programming Language :: Python :: 3.11',
    'Topic :: Scientific/Engineering :: Artificial Intelligence',
    'Topic :: Security',
  ],
  keywords='differential privacy, normalizing flows, synthetic data',
)
