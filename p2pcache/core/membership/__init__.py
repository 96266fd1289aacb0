"""Who is a member, whom it should dial, whether others can dial it."""
