#!/bin/sh
# The loader's tests on a GPU, then its benchmark. `make gpu` runs it; a machine without make does, too:
#     PY=python3 GPU_OFFLINE=1 SHORT=1 WHEELS=DIR JSON=FILE sh loadtest/bench_gpu/run.sh [flags of the benchmark]
# GPU_OFFLINE=1: what PY lacks comes from the wheels in WHEELS, unpacked and not installed.
set -u
PY=${PY:-python3}
JSON=${JSON:-build/gpu.json}
mkdir -p "$(dirname "$JSON")"
if [ -n "${GPU_OFFLINE:-}" ]; then
  site=$(mktemp -d)
  trap 'rm -rf "$site"' EXIT
  for wheel in "${WHEELS:-build/gpu-wheels}"/*.whl; do
    [ -e "$wheel" ] && { "$PY" -m zipfile -e "$wheel" "$site" || exit 2; }
  done
  PYTHONPATH="$site:$PWD"
  for code in "$site"/*.data/purelib "$site"/*.data/platlib; do # what pip would have moved
    [ -e "$code" ] && PYTHONPATH="$PYTHONPATH:$code"
  done
  export PYTHONPATH
fi
# another torch than the pinned one may warn
"$PY" -m pytest -q -rs -W default -p no:cacheprovider tests/loader/test_gpu.py
tests=$?
"$PY" -m loadtest.bench_gpu ${SHORT:+--short} --json "$JSON" "$@"
bench=$?
[ $tests -eq 0 ] || exit $tests
exit $bench
