"""Market data: recorded ticks are replayed, Spark makes one-minute bars of them, applications watch the bars.

    ticks.py    trades derived from the European Central Bank's daily rates, written as a recording of /ticks/
    bars.py     open, high, low, close, volume and VWAP a pair and minute: by Structured Streaming, and in plain Python
    demo.py     the whole: python -m examples.marketdata.demo

    recording --chp replay--> /ticks/ --readStream format("chp")--> bars --foreach_batch--> /bars/ --> applications

Ticks come late, as they do. A tick that is no later than the watermark changes the bar that was published; a later
one is left out. Both computations leave out the same, so that they can be compared to the digit.
"""
