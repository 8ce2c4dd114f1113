"""The files of a ledger, and the processes that write them."""
