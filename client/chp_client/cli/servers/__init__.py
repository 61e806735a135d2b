"""The commands of `chp` that ask and tell servers, and that measure them."""
