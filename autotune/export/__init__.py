"""Plain data in, verified files out: one module a consumer."""
