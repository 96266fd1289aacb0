"""Ten thousand simulated agents against one real tracker."""
