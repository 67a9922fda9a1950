select name, amount from {{ ref('sales') }} where amount > 100
