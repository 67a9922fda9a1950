"""What applications and the admin site ask by Django's ORM. Prints the answer to each question, as JSON by its name."""

import datetime as dt
import json
import sys
from decimal import Decimal

import django

django.setup()

from django.contrib.auth.models import User  # noqa: E402
from django.core.management import call_command  # noqa: E402
from django.db import DatabaseError, IntegrityError, connection, transaction  # noqa: E402
from django.db.models import (  # noqa: E402
    Avg,
    Case,
    Count,
    Exists,
    F,
    Max,
    OuterRef,
    ProtectedError,
    Q,
    Subquery,
    Sum,
    TextField,
    Value,
    When,
    Window,
)
from django.db.models.functions import (  # noqa: E402
    Coalesce,
    Concat,
    ExtractYear,
    Length,
    Lower,
    Rank,
    RowNumber,
    TruncMonth,
    Upper,
)
from django.test import Client  # noqa: E402
from shop.models import Customer, Label, Line, Order, Product  # noqa: E402

NEW_YEAR = dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)
QUESTIONS = {}


def question(function):
    QUESTIONS[function.__name__] = function
    return function


def fill():
    """The rows: 3 customers, 4 products, 12 orders."""
    call_command("flush", verbosity=0, interactive=False)
    ann, bob, cat = (
        Customer.objects.create(
            name=n, email=f"{n.lower()}@shop.test", settings={"n": i, "tags": [n], "deep": {"x": i}}
        )
        for i, n in enumerate(("Ann", "Bob", "Cat"))
    )
    labels = [Label.objects.create(label=name) for name in ("new", "old", "rare")]
    products = Product.objects.bulk_create(
        [Product(sku=f"p{i}", title=f"Product {i}", price=Decimal("9.90") * (i + 1)) for i in range(4)]
    )
    for i, product in enumerate(products):
        product.tags.set(labels[: i % 3 + 1])
    orders = Order.objects.bulk_create(
        [
            Order(
                customer=(ann, bob, cat)[i % 3],
                status="ops"[i % 3],
                placed=NEW_YEAR + dt.timedelta(days=17 * i),
                remark=f"remark {i}" if i % 2 else None,
            )
            for i in range(12)
        ],
        batch_size=5,
    )
    Line.objects.bulk_create(
        [Line(order=o, product=products[(i + j) % 4], amount=i + j + 1) for i, o in enumerate(orders) for j in range(2)]
    )


@question
def filters():
    found = Order.objects.filter(status__in=["o", "p"], placed__gte=NEW_YEAR + dt.timedelta(days=30)).exclude(
        customer__name__iexact="ANN"
    )
    return [
        [o.status, o.placed.isoformat(), o.customer.name] for o in found.order_by("-placed").select_related("customer")
    ]


@question
def pages():
    orders = Order.objects.order_by("placed")
    return [orders.count(), [o.placed.day for o in orders[3:6]], orders.filter(remark__isnull=True).exists()]


@question
def texts():
    q = Q(customer__name__icontains="a") | Q(remark__startswith="remark 1") | Q(remark__regex=r"5$")
    return sorted(str(r) for r in Order.objects.filter(q).values_list("remark", flat=True))


@question
def dates():
    by = Order.objects.annotate(m=TruncMonth("placed")).values("m").annotate(n=Count("id")).order_by("m")
    years = Order.objects.annotate(y=ExtractYear("placed")).values_list("y", flat=True).distinct()
    named = Order.objects.filter(placed__year=2024, placed__month__lte=2, placed__date__gt=dt.date(2024, 1, 2)).count()
    return [
        [[r["m"].isoformat(), r["n"]] for r in by],
        list(years),
        named,
        [d.isoformat() for d in Order.objects.dates("placed", "month")],
    ]


@question
def aggregates():
    total = Line.objects.aggregate(
        n=Sum("amount"), m=Max("product__price"), a=Avg("amount"), d=Count("product", distinct=True)
    )
    by = Customer.objects.annotate(
        n=Count("orders", distinct=True), s=Sum("orders__lines__amount", filter=Q(orders__status="o"))
    )
    return [
        total,
        list(by.order_by("name").values_list("name", "n", "s")),
        list(by.filter(n__gt=3).values_list("name")),
    ]


@question
def subqueries():
    newest = Order.objects.filter(customer=OuterRef("pk")).order_by("-placed")
    found = Customer.objects.annotate(
        newest=Subquery(newest.values("status")[:1]), any=Exists(newest.filter(status="s"))
    )
    return list(found.values_list("name", "newest", "any"))


@question
def windows():
    ranked = Line.objects.annotate(
        r=Window(Rank(), partition_by=F("product"), order_by=F("amount").desc()),
        n=Window(RowNumber(), order_by=F("amount").asc()),
    )
    return sorted(ranked.values_list("product__sku", "amount", "r"))


@question
def expressions():
    shown = Product.objects.annotate(
        size=Case(When(price__gte=20, then=Value("dear")), default=Value("cheap")),
        text=Concat(Upper("title"), Value("/"), Lower("sku"), output_field=TextField()),
        length=Length("title"),
        twice=F("price") * 2,
    )
    return list(shown.order_by("sku").values_list("size", "text", "length", "twice"))


@question
def many_to_many():
    found = Product.objects.filter(tags__label="old").distinct().order_by("sku").prefetch_related("tags")
    product = found[0]
    product.tags.add(Label.objects.get(label="rare"))
    product.tags.remove(Label.objects.get(label="new"))
    return [
        [[p.sku, sorted(t.label for t in p.tags.all())] for p in found],
        sorted(t.label for t in product.tags.all()),
    ]


@question
def json_fields():
    return [
        list(Customer.objects.filter(settings__n=1).values_list("name", flat=True)),
        list(Customer.objects.filter(settings__deep__x=1).values_list("name", flat=True)),
        list(Customer.objects.filter(settings__has_key="tags").values_list("settings__tags__0", flat=True)),
        list(Customer.objects.filter(settings__contains={"n": 2}).values_list("name", flat=True)),
        Customer.objects.get(name="Ann").settings,
    ]


@question
def get_or_create():
    made = [Label.objects.get_or_create(label="fresh")[1] for _ in range(2)]
    changed = [
        Customer.objects.update_or_create(name="Dan", defaults={"points": n, "email": "d@shop.test"})[1] for n in (1, 2)
    ]
    return [made, changed, Customer.objects.get(name="Dan").points]


@question
def upserts():
    rows = [Customer(name="Eve", email="ann@shop.test", points=7), Customer(name="Fay", email="fay@shop.test")]
    Customer.objects.bulk_create(rows, update_conflicts=True, unique_fields=["email"], update_fields=["points"])
    Label.objects.bulk_create([Label(label="new"), Label(label="last")], ignore_conflicts=True)
    found = list(Customer.objects.values_list("name", "points"))
    return [found, sorted(Label.objects.values_list("label", flat=True))]


@question
def updates():
    Order.objects.filter(status="o").update(
        status="p", remark=Concat(Coalesce("remark", Value("-", TextField())), Value("!"), output_field=TextField())
    )
    Customer.objects.filter(name="Bob").update(points=F("points") + 5)
    some = list(Product.objects.order_by("sku"))
    for number, product in enumerate(some):
        product.price = Decimal(number + 1)
    Product.objects.bulk_update(some, ["price"])
    bob = Customer.objects.get(name="Bob")
    bob.settings["n"] = None
    bob.save()
    bob.refresh_from_db()
    prices = list(Product.objects.order_by("sku").values_list("price", flat=True))
    return [Order.objects.filter(status="p").count(), bob.points, bob.settings, prices]


@question
def locks():
    with transaction.atomic():
        order = Order.objects.select_for_update().order_by("placed").first()
        order.remark = "locked"
        order.save(update_fields=["remark"])
    return Order.objects.filter(remark="locked").count()


@question
def savepoints():
    with transaction.atomic():
        Label.objects.create(label="outer")
        try:
            with transaction.atomic():
                Label.objects.create(label="inner")
                Label.objects.create(label="new")
        except IntegrityError as error:
            failed = type(error.__cause__).__name__
        known = sorted(Label.objects.filter(label__in=["outer", "inner"]).values_list("label", flat=True))
    try:
        with transaction.atomic():
            Label.objects.create(label="gone")
            Label.objects.get(label="nowhere")
    except Label.DoesNotExist:
        pass
    return [failed, known, Label.objects.filter(label="gone").count()]


@question
def constraints():
    found = []
    for values in ({"price": Decimal(-1)}, {"title": "Product 1"}, {"sku": "p1"}, {"sku": "x" * 30}):
        try:
            with transaction.atomic():
                Product.objects.create(**{"sku": "p9", "title": "Nine", "price": Decimal(9), **values})
        except DatabaseError as error:
            found.append([type(error).__name__, error.__cause__.sqlstate])
    try:
        with transaction.atomic():
            Line.objects.create(order_id=10**6, product_id="p1")
    except IntegrityError as error:
        found.append([type(error).__name__, error.__cause__.sqlstate])
    return found


@question
def deletions():
    line = Line.objects.first()
    try:
        line.product.delete()
    except ProtectedError:
        kept = Product.objects.filter(pk=line.product_id).exists()
    gone, by = Customer.objects.get(name="Cat").delete()
    return [kept, gone, by, Order.objects.count()]


@question
def sets():
    one, other = Order.objects.filter(status="p").values("status"), Order.objects.filter(status="s").values("status")
    union = one.union(other, all=True).count(), list(one.union(other).order_by("status"))
    return [union, list(one.intersection(other)), list(one.difference(other))]


@question
def iterators():
    with transaction.atomic():
        days = [o.placed.day for o in Order.objects.order_by("placed").iterator(chunk_size=4)]
    return [
        days,
        [str(n) for n in Customer.objects.raw("SELECT id, name FROM shop_customer WHERE points >= %s ORDER BY 2", [5])],
    ]


@question
def introspection():
    with connection.cursor() as cursor:
        names = sorted(n for n in connection.introspection.table_names(cursor) if n.startswith("shop_"))
        keys = {name: sorted(connection.introspection.get_relations(cursor, name).items()) for name in names}
        primary = {name: connection.introspection.get_primary_key_columns(cursor, name) for name in names}
        nulls = [[c.name, c.null_ok] for c in connection.introspection.get_table_description(cursor, "shop_order")]
        found = connection.introspection.get_constraints(cursor, "shop_line").values()
    keys_of = ("unique", "primary_key", "check", "foreign_key", "index")  # PostgreSQL 18 also lists NOT NULL
    shown = sorted(([c["columns"], *(c[key] for key in keys_of)] for c in found if any(map(c.get, keys_of))), key=str)
    return [names, keys, primary, nulls, shown]


@question
def admin():
    User.objects.create_superuser("root", "root@shop.test", "secret")
    client, found = Client(), []
    found.append(client.post("/admin/login/?next=/admin/", {"username": "root", "password": "secret"}).status_code)
    customer = Customer.objects.first()
    order = Order.objects.filter(customer=customer).first()
    paths = (
        "",
        "shop/order/",
        "shop/order/?status__exact=p&q=remark",
        "shop/order/?placed__year=2024&o=-4.1",
        "shop/order/?placed__month=2&placed__year=2024",
        f"shop/order/{order.pk}/change/",
        f"shop/customer/{customer.pk}/delete/",
        f"shop/order/{order.pk}/history/",
    )
    found += [client.get(f"/admin/{path}").status_code for path in paths]
    form = {"name": "Gil", "email": "gil@shop.test", "settings": '{"a": 1}', "points": "3"}
    found.append(client.post("/admin/shop/customer/add/", form).status_code)
    action = {"action": "delete_selected", "_selected_action": [str(order.pk)], "post": "yes"}
    found.append(client.post("/admin/shop/order/", action).status_code)
    return [found, Customer.objects.get(name="Gil").points, Order.objects.filter(pk=order.pk).count()]


def shown(value):
    """A value in JSON. Numerics are compared without trailing zeros."""
    return str(value.normalize()) if isinstance(value, Decimal) else str(value)


def main():
    fill()
    answers = {}
    for name, function in QUESTIONS.items():
        try:
            answers[name] = function()
        except Exception as error:
            answers[name] = f"{type(error).__name__}: {error}"
    json.dump(answers, sys.stdout, default=shown, indent=1, sort_keys=True)


main()
