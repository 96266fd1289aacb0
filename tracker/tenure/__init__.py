"""Which of several trackers is active: the candidacy of this one, and what it answers while another one is."""
