"""What parties say to each other, and how they prove who they are."""
