"""What a node reads from storage: with leases, and without a tracker."""
