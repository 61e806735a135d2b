"""Market data: recorded ticks are replayed, Spark makes one-minute bars of them, applications watch the bars.

    ticks.py    trades derived from the European Central Bank's daily rates, written as a recording of /ticks/
    bars.py     open, high, low, close, volume and VWAP a pair and minute: by Structured Streaming, and in plain Python
    demo.py     the whole: python -m examples.marketdata.demo

    recording --chp replay--> /ticks/ --readStream format("chp")--> bars --foreach_batch--> /bars/ --> applications

Some ticks come late, as in a real market. A late tick within the watermark changes the bar that was published. A tick
that comes later than that is left out. Both computations leave out the same ticks, so their bars are equal to the
last digit.
"""
