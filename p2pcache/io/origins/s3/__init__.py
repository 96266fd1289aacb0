"""S3 and compatible stores."""

import sys

_UNUSED = "urllib3.contrib.pyopenssl"

if _UNUSED not in sys.modules and "botocore.httpsession" not in sys.modules:
    # Where pyOpenSSL is installed botocore would import it, with all of `cryptography`, for a class that the standard
    # library's `ssl` has: 0.05 s of CPU time of each start.
    sys.modules[_UNUSED] = None  # type: ignore[assignment] # Python's way to say that a module isn't there
    try:
        import botocore.httpsession  # noqa: F401
    finally:
        del sys.modules[_UNUSED]
