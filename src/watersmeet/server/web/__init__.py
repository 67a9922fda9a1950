"""HTTP: the console, subscriptions as server-sent events, metrics and health. Needs the extra `serve`."""
