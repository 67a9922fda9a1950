"""Object stores and HDFS: their contract, the stores, and the files of databases in them."""
