"""What looks at a journal from outside, while no server has it: `chp check`, and its contents beside a server's."""
