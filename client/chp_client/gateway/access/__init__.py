"""Who asks, and what the rules of the pair let that user do (SPEC.md, section 36).

caller    one who asks, and what is not let, by the same rules as the servers': pure
callers   whose a request is, by token, by a proxy's header, or by nothing: pure
audit     a line for each token that is let in first, and each denial
"""
