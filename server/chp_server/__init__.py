"""The CHP server: a primary and a backup that keep one hashmap in one order.

    main -> reactor -> core -> commit, state, channels, syncs, follow, binary_star -> chp
                    -> journal (memory, SQLite, PostgreSQL)

The core decides, the reactor acts; `testing` has a pair for your own tests.
"""
