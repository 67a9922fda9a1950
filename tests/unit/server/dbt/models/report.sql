{{ config(materialized='table') }}
select n.name, s.amount from {{ ref('names') }} n join {{ ref('sales') }} s on n.name = s.name
