"""Every outbound connection: requests, streams and their time stamps."""
