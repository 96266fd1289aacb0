"""The pool: which models a node's disk keeps."""
