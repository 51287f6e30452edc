"""Words made of results: rows of a table, JSON, JUnit; nothing here touches a machine."""
