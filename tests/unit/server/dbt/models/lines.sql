select o.id, i.name, o.amount
from {{ source('raw', 'orders') }} o join {{ source('raw', 'items') }} i on o.item = i.item
