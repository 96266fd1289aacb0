"""What holds for all tests."""

from hypothesis import settings

# How long an example takes is the machine's business: 200 ms pass while another process runs.
settings.register_profile("p2pcache", deadline=None)
settings.load_profile("p2pcache")
