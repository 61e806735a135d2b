"""Benchmarks side by side with other programs: rates, delays, memory and processor time.

    python -m benchmarks                    everything, about ten minutes     (make bench)
    python -m benchmarks chp1 sets          these only                        --list shows all names
    python -m benchmarks --quick            everything, a minute or two, for a first look; not for quoting
    python -m benchmarks --against COMMIT   what this tree costs beside another commit (against.py)

Rules that keep the figures honest:
- Servers, writers and watchers are separate processes. A watcher holds what arrives, counts it, and at the end of a
  round its copy is compared with what was written. Nothing is left out of the measured work.
- The contenders are measured in the same run, in turn (A B C, C B A, ...), in several short rounds. The figure is the
  median, and the spread is kept beside it. The machine's speed drifts, so the ratio says more than the rate.
- Processor time is read from the kernel for each process, so it shows if a rate takes a second core.
- A run begins only at a load of at most 1. `--busy` measures at a higher load too, and marks the results.
- The results tell what was lost, healed or resent.

Results: `results/NAME.json` (the raw rounds too) and `results/NAME.png`, each with command, versions, machine and date.
"""
