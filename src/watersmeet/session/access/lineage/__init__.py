"""What explains rows reads: the queries of views, at the moments at which their rows came, and what came then."""
