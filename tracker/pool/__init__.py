"""The pool as the tracker keeps it: intents, orders, what is told of them."""
