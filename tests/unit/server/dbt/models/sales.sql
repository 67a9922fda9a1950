select name, count(*) as orders, sum(amount) as amount from {{ ref('lines') }} group by name
