"""One to one through two real agents, beside raw sendfile."""
