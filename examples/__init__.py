"""Starting points for users: each example runs unchanged, and the tests run it."""
