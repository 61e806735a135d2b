"""Tools for a journal from outside: `chp check`, and the comparison of its contents with a server's."""
