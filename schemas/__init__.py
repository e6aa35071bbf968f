"""Wire contracts of Twincast: structs, the table of topics, bytes <-> structs. Imports nothing of ours."""
