{{ config(materialized='view') }}
select distinct name from {{ ref('lines') }}
