"""The callers of a gateway, and their rights by the rules of the pair (SPEC.md, section 36).

caller    one caller and its rights, by the functions of the servers: pure
callers   the caller of a request, by a token, by the header of a proxy, or by neither: pure
audit     a line for each new token, and for each denial
"""
