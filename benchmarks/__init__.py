"""Side by side with peers: how fast, how soon, how large, and what it costs.

    python -m benchmarks                    everything, about ten minutes     (make bench)
    python -m benchmarks chp1 sets          these only                        --list shows all names
    python -m benchmarks --quick            everything, a minute or two, for a first look; not for quoting
    python -m benchmarks --against COMMIT   what this tree costs beside another commit (against.py)

Rules that keep the figures honest:
- Servers, writers and watchers are separate processes. A watcher holds what arrives, counts it, and at the end of a
  round its copy is compared with what was written. Nothing is left out of the measured work.
- Who is compared runs in the same run, in turn (A B C A B C ...), several short rounds each; the figure is the median,
  and the spread is kept beside it. The machine's speed drifts, so the ratio says more than the rate.
- Processor time is read from the kernel for each process, so a rate that was bought with a second core shows.
- A run begins only at a load of at most 1. `--busy` measures at a higher one, and marks the results.
- What was lost, healed or resent is in the data, not in a footnote.

Results: `results/NAME.json` (the raw rounds too) and `results/NAME.png`, each with command, versions, machine and date.
"""
