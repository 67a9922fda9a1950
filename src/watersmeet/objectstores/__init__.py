"""Object stores and HDFS: their contract, their implementations, and the files of databases in them."""
