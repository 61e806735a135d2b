"""A demo of topics: orders that a group of programs handles, while programs and servers are killed."""
