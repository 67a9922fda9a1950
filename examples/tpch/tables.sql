-- TPC-H's tables (specification, section 1.4), as RisingWave writes them: numbers without precision, text as varchar.
CREATE TABLE region (r_regionkey int PRIMARY KEY, r_name varchar, r_comment varchar);
CREATE TABLE nation (n_nationkey int PRIMARY KEY, n_name varchar, n_regionkey int, n_comment varchar);
CREATE TABLE supplier (s_suppkey bigint PRIMARY KEY, s_name varchar, s_address varchar, s_nationkey int, s_phone varchar,
    s_acctbal numeric, s_comment varchar);
CREATE TABLE part (p_partkey bigint PRIMARY KEY, p_name varchar, p_mfgr varchar, p_brand varchar, p_type varchar,
    p_size int, p_container varchar, p_retailprice numeric, p_comment varchar);
CREATE TABLE partsupp (ps_partkey bigint, ps_suppkey bigint, ps_availqty bigint, ps_supplycost numeric, ps_comment varchar,
    PRIMARY KEY (ps_partkey, ps_suppkey));
CREATE TABLE customer (c_custkey bigint PRIMARY KEY, c_name varchar, c_address varchar, c_nationkey int, c_phone varchar,
    c_acctbal numeric, c_mktsegment varchar, c_comment varchar);
CREATE TABLE orders (o_orderkey bigint PRIMARY KEY, o_custkey bigint, o_orderstatus varchar, o_totalprice numeric,
    o_orderdate date, o_orderpriority varchar, o_clerk varchar, o_shippriority int, o_comment varchar);
CREATE TABLE lineitem (l_orderkey bigint, l_partkey bigint, l_suppkey bigint, l_linenumber bigint, l_quantity numeric,
    l_extendedprice numeric, l_discount numeric, l_tax numeric, l_returnflag varchar, l_linestatus varchar,
    l_shipdate date, l_commitdate date, l_receiptdate date, l_shipinstruct varchar, l_shipmode varchar,
    l_comment varchar, PRIMARY KEY (l_orderkey, l_linenumber));
