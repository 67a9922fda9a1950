"""Changes of each kind that Django writes: columns, types, names, indexes, constraints, tables, rows."""

import django.db.models.deletion
from django.db import migrations, models


def fill(apps, _):
    orders = apps.get_model("shop", "Order").objects
    orders.filter(remark__isnull=True).update(remark="")


class Migration(migrations.Migration):
    dependencies = [("shop", "0001_initial")]
    operations = [
        migrations.AddField("customer", "points", models.IntegerField(default=0)),
        migrations.AddField("customer", "phone", models.CharField(max_length=20, null=True)),
        migrations.AlterField("customer", "name", models.CharField(max_length=120, db_index=True)),
        migrations.AlterField("customer", "email", models.EmailField(max_length=254, unique=True, null=True)),
        migrations.RemoveField("customer", "phone"),
        migrations.RenameField("order", "note", "remark"),
        migrations.RunPython(fill, migrations.RunPython.noop),
        migrations.AlterField(
            "order",
            "status",
            models.CharField(max_length=8, default="o", choices=[("o", "Open"), ("p", "Paid"), ("s", "Sent")]),
        ),
        migrations.AlterField("line", "amount", models.BigIntegerField(default=1)),
        migrations.RenameModel("Tag", "Label"),
        migrations.AlterUniqueTogether("line", {("order", "product", "amount")}),
        migrations.AlterUniqueTogether("line", {("order", "product")}),
        migrations.RemoveIndex("order", "order_status"),
        migrations.AddIndex("order", models.Index(fields=["placed"], name="order_placed")),
        migrations.RemoveConstraint("product", "price_positive"),
        migrations.AddConstraint(
            "product", models.CheckConstraint(condition=models.Q(price__gt=0), name="price_above_zero")
        ),
        migrations.AddConstraint("product", models.UniqueConstraint(fields=["title"], name="one_title")),
        migrations.AddField(
            "order",
            "parent",
            models.ForeignKey("shop.Order", null=True, blank=True, on_delete=django.db.models.deletion.SET_NULL),
        ),
        migrations.CreateModel(
            "Log",
            [
                ("id", models.UUIDField(primary_key=True)),
                ("text", models.TextField(db_comment="what happened")),
                ("took", models.DurationField(null=True)),
                ("day", models.DateField(null=True)),
                ("raw", models.BinaryField(null=True)),
                ("share", models.FloatField(null=True)),
                ("at", models.TimeField(null=True)),
            ],
        ),
        migrations.AlterModelTable("log", "journal"),
        migrations.DeleteModel("Log"),
    ]
