#!/usr/bin/env bash
# Measure on a GPU what the documentation states of one:
#     benchmarks/gpu.sh OUT [--rehearse] [PART ...]
# OUT gets a log and a table per part: loss search encode train resume quickstart tests; default: all. DECODER=DIR, a
# folder made by docs/studies/decoder/convert.py, is trained too. --rehearse takes tiny sizes, on any device. A part
# that fails does not stop the others; the exit code is the number of parts that failed.
set -u
here=$(cd "$(dirname "$0")" && pwd); out=$1; shift
quick=; parts=()
for word in "$@"; do if [ "$word" = --rehearse ]; then quick=--quick; else parts+=("$word"); fi; done
[ ${#parts[@]} -gt 0 ] || parts=(loss search encode train resume quickstart tests)
mkdir -p "$out"; out=$(cd "$out" && pwd); cd "$here/.."; failed=0; python=${PYTHON:-python3}
export PYTHONUNBUFFERED=1 PYTHONPATH=$PWD/src${PYTHONPATH:+:$PYTHONPATH}

timed() {  # NAME COMMAND ...
  local name=$1 start=$SECONDS; shift
  if "$@" > "$out/$name.log" 2>&1; then echo "$name: done in $((SECONDS - start)) s"; return; fi
  failed=$((failed + 1)); echo "$name: failed after $((SECONDS - start)) s ($out/$name.log)"; tail -n 3 "$out/$name.log"
}
table() { timed "$1" "$python" "benchmarks/bench_$2.py" --out "$out/$1.csv" ${quick:+"$quick"} "${@:3}"; }
tests() { "$python" -m pytest -p no:cacheprovider -rf "$@"; }

for part in "${parts[@]}"; do
  case $part in
    loss | encode) table "$part" "$part" ;;
    search) table search eval ;;
    train)
      if [ -n "$quick" ]; then table train train
      else table train train --documents 3 --max-lengths 256 --batch-size 64 256; fi
      if [ -n "${DECODER:-}" ]; then
        table decoder train --model "$DECODER" --documents 2 --max-lengths 96 --batch-size 256
      fi ;;
    resume)
      if [ -n "$quick" ]; then timed resume tests tests/training/test_on_a_gpu.py
      else timed resume tests tests/training/test_on_a_gpu.py -m "gpu or nvidia"; fi ;;
    quickstart)
      if [ -n "$quick" ]; then timed quickstart "$python" -m bixse quickstart --help
      else timed quickstart "$python" -m bixse quickstart --out "$out/quickstart"; fi ;;
    tests)
      if [ -n "$quick" ]; then timed tests tests tests/test_settings.py
      else  # each worker on one thread: more would only wait for one another
        OMP_NUM_THREADS=1 timed gpu-tests tests tests -m "gpu or nvidia"
        OMP_NUM_THREADS=1 timed tests tests tests/{losses,encoders,training,evaluation,calibration,search} -n 12 \
          -m "not gpu and not nvidia and not slow and not net"
      fi ;;
    *) echo "$part: no such part"; failed=$((failed + 1)) ;;
  esac
done
exit "$failed"
