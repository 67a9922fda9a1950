"""A shop, as it is after the second migration."""

from django.db import models


class Customer(models.Model):
    name = models.CharField(max_length=120, db_index=True)
    email = models.EmailField(unique=True, null=True)
    joined = models.DateTimeField(auto_now_add=True)
    settings = models.JSONField(default=dict)
    points = models.IntegerField(default=0)

    class Meta:
        ordering = ["name"]

    def __str__(self):
        return self.name


class Label(models.Model):
    label = models.SlugField(max_length=30, unique=True)

    def __str__(self):
        return self.label


class Product(models.Model):
    sku = models.CharField(max_length=20, primary_key=True)
    title = models.TextField()
    price = models.DecimalField(max_digits=10, decimal_places=2)
    tags = models.ManyToManyField(Label, related_name="products")

    class Meta:
        constraints = [
            models.CheckConstraint(condition=models.Q(price__gt=0), name="price_above_zero"),
            models.UniqueConstraint(fields=["title"], name="one_title"),
        ]

    def __str__(self):
        return self.title


class Order(models.Model):
    customer = models.ForeignKey(Customer, on_delete=models.CASCADE, related_name="orders")
    parent = models.ForeignKey("self", null=True, blank=True, on_delete=models.SET_NULL)
    status = models.CharField(max_length=8, default="o", choices=[("o", "Open"), ("p", "Paid"), ("s", "Sent")])
    placed = models.DateTimeField()
    remark = models.TextField(blank=True, null=True)

    class Meta:
        indexes = [models.Index(fields=["placed"], name="order_placed")]


class Line(models.Model):
    order = models.ForeignKey(Order, on_delete=models.CASCADE, related_name="lines")
    product = models.ForeignKey(Product, on_delete=models.PROTECT)
    amount = models.BigIntegerField(default=1)

    class Meta:
        unique_together = [("order", "product")]
