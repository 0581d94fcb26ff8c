"""What tests of graphs share."""

import pytest


@pytest.fixture(scope="module")
def own_cache(tmp_path_factory):
    """Keep the user's cache free of kernels that no model has."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield
